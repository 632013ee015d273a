"""What all steps of a model must share, and what no two of them may."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.sources.base import Source
from stages.sources.pin import differing_keys
from stages.sources.weights import PICKLED, SAFE, listed
from stages.tokens.files import tokenizer_names
from stages.tokens.reading import differences, load_tokenizer, reading

WEIGHTS = (SAFE[2], PICKLED[2])


def same_config(configs: dict[str, dict]) -> list[str]:
    """A line for each step whose config differs from the first one's, book-keeping aside."""
    first, config = next(iter(configs.items()))
    lines = []
    for step, other in configs.items():
        differing = differing_keys(config, other)
        if differing:
            lines.append(f"steps {first} and {step} have different configs ({', '.join(differing[:5])})")
    return lines


def same_code(plan: dict[str, Any], config: dict) -> dict | None:
    """The code that may run: `{"files": [{"name", the promised hash}]}`, None if there is none.

    Raises:
        Refusal: two steps have different code, or the config asks for code of another repository.
    """
    if not plan["source"].get("trust_remote_code") or "auto_map" not in config:
        return None
    elsewhere = [str(name) for name in config["auto_map"].values() if "--" in str(name)]
    if elsewhere:
        raise Refusal(f"config.json asks for code of another repository ({elsewhere[0]}), which is not pinned: not run")
    found: dict[str, list] = {}
    for step, files in plan["files"].items():
        code = [{**f, "name": Path(f["name"]).name} for f in files if f["name"].endswith(".py")]
        found[step] = sorted(code, key=lambda file: file["name"])
    first = next(iter(found))
    other = next((step for step in found if found[step] != found[first]), None)
    if other:
        raise Refusal(f"steps {first} and {other} have different code: make them two models")
    if not found[first]:
        raise Refusal("config.json asks for remote code, but there are no .py files beside it")
    return {"files": found[first]}


def duplicate_problems(plan: dict[str, Any]) -> list[str]:
    """A line for each group of steps whose weight files are the same, byte for byte, as far as hashes tell."""
    if plan["allow_duplicates"] or plan["on_failure"] == "exclude":
        return []
    groups: dict[tuple[str, ...], list[str]] = {}
    for step, files in plan["files"].items():
        groups.setdefault(_weights(files), []).append(step)
    return [
        f"steps {listed(steps, 8)} hold the same weights, so at most one is what its name says; "
        "leave out what is wrong, or set allow_duplicates: true"
        for steps in groups.values()
        if len(steps) > 1
    ]


def shared_files(plan: dict[str, Any]) -> list[str]:
    """A line for each weight file that steps with different weights have in common: a shard that is out of date?"""
    holders: dict[str, list[str]] = {}
    names: dict[str, str] = {}
    for step, files in plan["files"].items():
        for file in (file for file in files if file["name"].endswith(WEIGHTS)):
            holders.setdefault(_hash(file), []).append(step)
            names[_hash(file)] = Path(file["name"]).name
    hashes = {step: _weights(files) for step, files in plan["files"].items()}
    return [
        f"steps {listed(steps, 8)} share {names[key]}, byte for byte: is one of them out of date?"
        for key, steps in holders.items()
        if len({hashes[step] for step in steps}) > 1
    ]


def _weights(files: list[dict]) -> tuple[str, ...]:
    """What tells the weight files of a step from those of another."""
    return tuple(sorted(_hash(file) for file in files if file["name"].endswith(WEIGHTS)))


def same_tokenizer(plan: dict[str, Any], source: Source, prompts: list[dict]) -> tuple[list[str], list[str]]:
    """Each step's tokenizer.json must read the prompts as the same ids.

    Returns:
        Problems and notes, a line each.
    """
    if plan["tokenizer"] or plan["source"]["kind"] == "gguf":
        return [], []
    places = {
        step: next((f for f in files if Path(f["name"]).name == "tokenizer.json"), None)
        for step, files in plan["files"].items()
    }
    if not any(places.values()):
        others = any(tokenizer_names([Path(f["name"]).name for f in files]) for files in plan["files"].values())
        outlook = "made from the tokenizer's other files, if that can be proven" if others else "measured on random ids"
        return [], [f"no tokenizer.json: {outlook}"]
    problems = [f"step {step} has no tokenizer.json, other steps have one" for step, f in places.items() if f is None]
    known: dict[str, dict] = {}
    readings: dict[str, dict] = {}
    distinct = {_hash(file) for file in places.values() if file}
    for step, file in places.items():
        if file is None or (source.remote and len(distinct) == 1):
            continue
        try:
            if _hash(file) not in known:
                tokenizer = load_tokenizer(source.small_file(step, file["name"]).parent)
                assert tokenizer is not None
                known[_hash(file)] = reading(tokenizer, prompts)
            readings[step] = known[_hash(file)]
        except Refusal as refusal:
            problems.append(str(refusal))
    first = next(iter(readings), None)
    for step, found in readings.items():
        lines = differences(readings[first], found)
        if lines:
            problems.append(f"steps {first} and {step} have different tokenizers: {lines[0]}")
    return list(dict.fromkeys(problems)), []


def _hash(file: dict) -> str:
    return file.get("sha256") or file["git_sha1"]

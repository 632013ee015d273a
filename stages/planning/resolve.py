"""Resolving one model of params.yaml: which steps, pinned to which content, of which config."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import canonical, read_json
from stages.planning.schema import Params
from stages.sources.demo import CONFIG
from stages.sources.local import DEMO_RUN, Source, open_source
from stages.sources.pin import Digests, checkpoint_files, differing_keys, revision
from stages.sources.weights import open_weights
from stages.tokens.reading import differences, load_tokenizer, read_prompts, reading

DEFAULT_PROBE = "The capital of France is"


def wanted(params: Params, name: str) -> dict[str, Any]:
    """All that params.yaml says of one model, its gates resolved: what a plan must fit."""
    model = params.models[name]
    return {
        "source": {"kind": model.source.kind, "path": model.source.path or str(DEMO_RUN)},
        "steps": model.steps,
        "tokenizer": model.tokenizer,
        "probe": model.probe or DEFAULT_PROBE,
        "licence": model.licence,
        "prompts": model.prompts or params.prompts,
        "formats": params.formats,
        "gates": params.gates_of(name),
    }


def spread(steps: list[int], count: int) -> list[int]:
    """`count` of the steps, evenly on a log axis, first and last among them; all of them if there are fewer."""
    if len(steps) <= count:
        return steps
    low, high = math.log1p(steps[0]), math.log1p(steps[-1])
    chosen: set[int] = set()
    for index in range(count):
        target = low + (high - low) * index / (count - 1)
        left = [step for step in steps if step not in chosen]
        chosen.add(min(left, key=lambda step: abs(math.log1p(step) - target)))
    return sorted(chosen)


class Resolved:
    """One model on its way from params.yaml to a plan.

    Attributes:
        problems: what stands in the way, a line each.
        notes: what people should know, a line each.
        plan: the content of params.json; complete only if there are no problems.
    """

    def __init__(self, name: str, entry: dict[str, Any], digests: Digests) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []
        self.plan: dict[str, Any] = {"model": name, **entry}
        gates = dict(entry["gates"])
        self.plan |= {"on_failure": gates.pop("on_failure"), "gates": gates, "entry": entry}
        source = open_source(entry["source"])
        missing = source.missing()
        if missing:
            self.problems.append(missing)
            return
        self.prompts = self._attempt(lambda: read_prompts(Path(entry["prompts"])))
        if entry["tokenizer"] and not (Path(entry["tokenizer"]) / "tokenizer.json").exists():
            self.problems.append(f"tokenizer: no tokenizer.json in {entry['tokenizer']}")
        steps = self._steps(source, entry["steps"])
        self.plan["steps"] = [str(step) for step in steps]
        if source.made_by_pipeline:
            self.plan |= {"config": CONFIG, "revisions": dict.fromkeys(self.plan["steps"])}
        else:
            self._pin(source, digests)

    def _attempt(self, action: Any) -> Any:
        try:
            return action()
        except Refusal as refusal:
            self.problems.append(str(refusal))
            return None

    def _steps(self, source: Source, asked: Any) -> list[int]:
        whole, incomplete = source.steps()
        if isinstance(asked, list):
            for step in asked:
                if step in incomplete:
                    self.problems.append(f"step {step} is incomplete: {incomplete[step]}")
                elif step not in whole:
                    there = ", ".join(map(str, whole[:12])) + (" …" if len(whole) > 12 else "")
                    self.problems.append(f"step {step} is not there (steps in {source.root}: {there or 'none'})")
            return [step for step in asked if step in whole]
        self.notes += [f"step {step} is incomplete and left out: {reason}" for step, reason in incomplete.items()]
        if not whole:
            self.problems.append(f"no checkpoints in {source.root}")
        return spread(whole, asked["log"]) if isinstance(asked, dict) else whole

    def _pin(self, source: Source, digests: Digests) -> None:
        """Pin each step to its content; all must share one config and one tokenizer."""
        revisions, configs = {}, {}
        for step in self.plan["steps"]:
            self._attempt(lambda step=step: open_weights(source.folder(step)))
            config = self._config(source.folder(step))
            if config is not None:
                configs[step] = config
                files = checkpoint_files(source, step, self.plan["tokenizer"])
                revisions[step] = revision({path.name: digests.of(path) for path in files if path.exists()})
        if not configs:
            return
        first, config = next(iter(configs.items()))
        for step, other in configs.items():
            differing = differing_keys(config, other)
            if differing:
                self.problems.append(f"steps {first} and {step} have different configs ({', '.join(differing[:5])})")
        if "auto_map" in config:
            self.problems.append("config.json asks for remote code (auto_map): not supported")
        if "quantization_config" in config:
            self.problems.append("config.json asks for quantised weights: dequantise the checkpoints first")
        self.plan |= {"config": config, "revisions": revisions}
        self._same_tokenizer(source)

    def _config(self, folder: Path) -> dict | None:
        try:
            config = read_json(folder / "config.json")
        except ValueError as error:
            self.problems.append(f"{folder / 'config.json'} is not JSON ({error})")
            return None
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            self.problems.append(f"{folder / 'config.json'} has no model_type")
            return None
        return config

    def _same_tokenizer(self, source: Source) -> None:
        """Each step's tokenizer must read the prompts as the same ids."""
        places = {s: self.plan["tokenizer"] or source.tokenizer_folder(s) for s in self.plan["steps"]}
        if not any(places.values()):
            self.notes.append("no tokenizer.json: measured on random ids, and no text can be typed for it")
            return
        if self.prompts is None:
            return
        known: dict[bytes, dict | None] = {}
        readings = {}
        for step, place in places.items():
            if place is None:
                self.problems.append(f"step {step} has no tokenizer.json, other steps have one")
                continue
            content = (Path(place) / "tokenizer.json").read_bytes()
            if content not in known:
                tokenizer = self._attempt(lambda place=place: load_tokenizer(Path(place)))
                known[content] = reading(tokenizer, self.prompts) if tokenizer else None
            if known[content]:
                readings[step] = known[content]
        first = next(iter(readings), None)
        for step, found in readings.items():
            lines = differences(readings[first], found)
            if lines:
                self.problems.append(f"steps {first} and {step} have different tokenizers: {lines[0]}")


def fits(plan: dict[str, Any], entry: dict[str, Any]) -> bool:
    """Whether a plan was made from this entry of params.yaml."""
    return canonical(plan.get("entry")) == canonical(entry)

"""Prove a checkpoint whole and write down what it is: `python -m stages.fetch MODEL STEP`.

In: the pinned plan, the checkpoint where it lies, what the architecture needs (data/graphs/MODEL/backbone).
Out: data/checkpoints/MODEL/step<STEP>: checkpoint.json (files, tensors, digests), config.json, tokenizer files.
The weights stay where they are.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.command import Refusal, say, stage
from stages.files import checkpoint_folder, graph_folder, json_text, new_folder, read_json, sha256_file
from stages.planning.plan import load_plan
from stages.sources.local import Source, incomplete, open_source
from stages.sources.pin import checkpoint_files, differing_keys, revision, short
from stages.sources.record import check_tied, examine, match, weight_digest
from stages.sources.weights import listed, open_weights
from stages.tokens.files import TOKENIZER_FILES


def check_config(folder: Path, traced: dict, whole: bool) -> None:
    """Refuse a checkpoint whose config is not the one that was traced.

    Args:
        folder: the checkpoint.
        traced: the plan's config.
        whole: whether the plan has every key of it, or only those that differ from the defaults.
    """
    try:
        found = read_json(folder / "config.json")
    except ValueError as error:
        raise Refusal(f"{folder / 'config.json'} is not JSON ({error})") from None
    keys = [key for key in differing_keys(found, traced) if whole or key in traced]
    if keys:
        rows = [f"{key}: {found.get(key)!r} (traced {traced.get(key)!r})" for key in keys]
        raise Refusal(f"its config differs from the one that was traced: {listed(rows)}; make it a model of its own")


def examine_checkpoint(model: str, step: str, plan: dict, source: Source) -> dict:
    """The record of a checkpoint.

    Raises:
        Refusal: it is incomplete, changed since the plan, of another config, or holds NaN.
    """
    folder = source.folder(step)
    reason = incomplete(folder)
    if reason:
        raise Refusal(reason)
    check_config(folder, plan["config"], whole=not source.made_by_pipeline)
    files = checkpoint_files(source, step, plan["tokenizer"])
    hashes = {path.name: sha256_file(path) for path in files}
    pinned, found = plan["revisions"].get(step), revision(hashes)
    if pinned and pinned != found:
        raise Refusal(f"{folder} is {short(found)}, the plan has {short(pinned)}: run `make plan` to take the new one")
    parameters = read_json(graph_folder(model, "backbone") / "parameters.json")
    tensors = open_weights(folder)
    chosen, unused = match(parameters, tensors)
    facts = examine(tensors, set(tensors) - set(unused))
    check_tied(parameters, facts)
    return {
        "schema": 1,
        "model": model,
        "step": step,
        "revision": found,
        "weight_digest": weight_digest(facts),
        "files": [{"name": p.name, "bytes": p.stat().st_size, "sha256": hashes[p.name]} for p in files],
        "parameters": chosen,
        "unused": unused,
        "tensors": facts,
    }


def main(model: str, step: str) -> None:
    """Examine and write; with `on_failure: exclude` a checkpoint that can't be used is recorded as rejected."""
    plan = load_plan(model)
    source = open_source(plan["source"])
    try:
        record = examine_checkpoint(model, step, plan, source)
    except Refusal as refusal:
        if plan["on_failure"] != "exclude":
            raise
        say(f"fetch {model} step {step}: rejected: {refusal}")
        with new_folder(checkpoint_folder(model, step)) as target:
            (target / "checkpoint.json").write_text(json_text({"schema": 1, "step": step, "rejected": str(refusal)}))
        return
    place = Path(plan["tokenizer"]) if plan["tokenizer"] else source.tokenizer_folder(step)
    with new_folder(checkpoint_folder(model, step)) as target:
        (target / "checkpoint.json").write_text(json_text(record))
        shutil.copyfile(source.folder(step) / "config.json", target / "config.json")
        for name in TOKENIZER_FILES if place else ():
            if (place / name).exists():
                shutil.copyfile(place / name, target / name)
    total = sum(file["bytes"] for file in record["files"])
    ignored = f"; not part of this architecture: {listed(record['unused'])}" if record["unused"] else ""
    say(
        f"fetch {model} step {step}: {len(record['parameters'])} tensors, {total / 1e6:.1f} MB, "
        f"weights {record['weight_digest'][:12]}{ignored}"
    )


if __name__ == "__main__":
    stage("fetch", main, __doc__, "model", "step")

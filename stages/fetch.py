"""Bring a checkpoint here, prove it whole and write down what it is: `python -m stages.fetch MODEL STEP`.

In: the pinned plan, the checkpoint where it lies, what the architecture needs (data/graphs/MODEL/backbone).
Out: data/checkpoints/MODEL/step<STEP>: checkpoint.json (files, tensors, digests), config.json, tokenizer files.
The weights stay where they are, or in the Hugging Face cache.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.command import Refusal, Unreachable, say, stage
from stages.files import checkpoint_folder, graph_folder, json_text, new_folder, read_json
from stages.planning.plan import load_plan
from stages.sources.base import CONFIG_FILE, Source
from stages.sources.kinds import open_source
from stages.sources.pin import content_digest, differing_keys
from stages.sources.record import check_tied, examine, match, same_weights, weight_digest
from stages.sources.tokenizer import bring_pinned
from stages.sources.weights import listed, open_weights
from stages.tokens.convert import bring_tokenizer
from stages.tokens.files import tokenizer_files


def check_config(folder: Path, traced: dict, whole: bool) -> None:
    """Refuse a checkpoint whose config is not the one that was traced.

    Args:
        folder: the checkpoint.
        traced: the plan's config.
        whole: whether the plan has every key of it, or only those that differ from the defaults.
    """
    try:
        found = read_json(folder / CONFIG_FILE)
    except ValueError as error:
        raise Refusal(f"{folder / CONFIG_FILE} is not JSON ({error})") from None
    keys = [key for key in differing_keys(found, traced) if whole or key in traced]
    if keys:
        rows = [f"{key}: {found.get(key)!r} (traced {traced.get(key)!r})" for key in keys]
        raise Refusal(f"its config differs from the one that was traced: {listed(rows)}; make it a model of its own")


def examine_checkpoint(model: str, step: str, plan: dict, source: Source, folder: Path) -> dict:
    """The record of a checkpoint.

    Raises:
        Refusal: it is incomplete, of another config, holds NaN, or the weights of another step.
    """
    check_config(folder, plan["config"], whole=not source.made_by_pipeline)
    files = plan["files"][step] or [source.promise(step, name) for name in source.members(step, with_tokenizer=True)]
    parameters = read_json(graph_folder(model, "backbone") / "parameters.json")
    tensors = open_weights(folder, source.allow_pickle)
    chosen, unused = match(parameters, tensors)
    facts = examine(tensors, set(tensors) - set(unused))
    check_tied(parameters, facts)
    digest = weight_digest(facts)
    twin = None if plan["allow_duplicates"] or plan["on_failure"] == "exclude" else same_weights(plan, step, digest)
    if twin:
        raise Refusal(
            f"holds the same weights as step {twin} (digest {digest[:12]}): not both can be what they say; "
            "leave one out, or set allow_duplicates: true"
        )
    return {
        "schema": 1,
        "model": model,
        "step": step,
        "revision": plan["revisions"][step] or content_digest(files),
        "weight_digest": digest,
        "files": files,
        "parameters": chosen,
        "shapes": {name: parameters[name]["shape"] for name, parts in chosen.items() if not isinstance(parts, str)},
        "unused": unused,
        "tensors": facts,
        **source.provenance(step),
    }


def tokenizer_folder(plan: dict, source: Source, step: str) -> Path | None:
    """Where the tokenizer of a checkpoint lies on this machine, every file of it pinned.

    Raises:
        Refusal: there are files that the plan does not know.
    """
    place = bring_pinned(plan["tokenizer"]) if plan["tokenizer"] else source.tokenizer_folder(step)
    pins = (plan["tokenizer"] or plan)["files"]["0" if plan["tokenizer"] else step]
    if place and pins and source.spec["kind"] != "gguf":
        known = {Path(file["name"]).name for file in pins}
        new = [path.name for path in tokenizer_files(place) if path.name not in known]
        if new:
            raise Refusal(f"{place} has {listed(new)}, which the plan does not know: run `make plan`")
    return place


def main(model: str, step: str) -> None:
    """Bring, examine and write; with `on_failure: exclude` a checkpoint that can't be used is recorded as rejected."""
    plan = load_plan(model)
    source = open_source(plan)
    try:
        folder = source.bring(step)
        record = examine_checkpoint(model, step, plan, source, folder)
    except Refusal as refusal:
        if plan["on_failure"] != "exclude" or isinstance(refusal, Unreachable):
            raise
        say(f"fetch {model} step {step}: rejected: {refusal}")
        with new_folder(checkpoint_folder(model, step)) as target:
            (target / "checkpoint.json").write_text(json_text({"schema": 1, "step": step, "rejected": str(refusal)}))
        return
    place = tokenizer_folder(plan, source, step)
    with new_folder(checkpoint_folder(model, step)) as target:
        shutil.copyfile(folder / CONFIG_FILE, target / CONFIG_FILE)
        record["tokenizer"] = bring_tokenizer(place, target, plan["config"]) if place else None
        (target / "checkpoint.json").write_text(json_text(record))
    _say(model, step, record)


def _say(model: str, step: str, record: dict) -> None:
    total = sum(file["bytes"] for file in record["files"])
    ignored = f"; not part of this architecture: {listed(record['unused'])}" if record["unused"] else ""
    tokenizer = record["tokenizer"]
    if tokenizer and tokenizer["made"] != "as it is":
        ignored += f"; tokenizer: {tokenizer['reason'] or 'tokenizer.json made from ' + listed(tokenizer['from'])}"
    say(
        f"fetch {model} step {step}: {len(record['parameters'])} tensors, {total / 1e6:.1f} MB, "
        f"weights {record['weight_digest'][:12]}{ignored}"
    )


if __name__ == "__main__":
    stage("fetch", main, __doc__, "model", "step")

"""From params.yaml to models/<id>/: `python -m stages.plan [--check | --update]`.

Every source is checked, every problem of every model is listed at once; only then anything is written: the pinned
params.json and dvc.yaml of each model. What was pinned on a hub stays pinned, until `--update` asks for what branches
and tags are now. `--check` writes nothing and fails if models/ no longer fits params.yaml.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from stages.command import Refusal, counted, run, say
from stages.files import DATA, failure_file, json_text, plan_file, read_json, write_bytes
from stages.planning.forecast import no_room, outlook
from stages.planning.pipeline import pipeline
from stages.planning.plan import planned_models
from stages.planning.resolve import Resolved, fits, wanted
from stages.planning.schema import load
from stages.sources.pin import short


def check() -> None:
    """Refuse if a model was added, removed or changed in params.yaml since the plan was made."""
    params = load()
    planned = planned_models()
    stale = [f"{name} is new" for name in params.models if name not in planned]
    stale += [f"{name} was removed" for name in planned if name not in params.models]
    for name in planned:
        if name in params.models and not fits(read_json(plan_file(name)), wanted(params, name)):
            stale.append(f"{name} changed")
    if stale:
        raise Refusal(f"params.yaml no longer fits models/ ({'; '.join(stale)}): run `make plan`")
    say(f"plan: {counted(len(planned), 'model')}, as params.yaml says")


def main(update: bool = False) -> None:
    """Resolve all models, then write.

    Args:
        update: take what branches and tags of hubs are now.
    """
    params = load()
    old = {name: read_json(plan_file(name)) for name in planned_models()}
    resolved = {name: Resolved(name, wanted(params, name), old.get(name), update) for name in params.models}
    problems = [f"{name}: {problem}" for name, model in resolved.items() for problem in model.problems]
    problems = problems or no_room(list(resolved.values()))
    if problems:
        heading = f"{len(problems)} problems, nothing was written" if len(problems) > 1 else "nothing was written"
        raise Refusal(heading + "".join(f"\n  {problem}" for problem in problems))
    for name in old:
        if name not in resolved:
            _forget(name)
    for name, model in resolved.items():
        _write(name, model, old.get(name))
        for note in model.notes:
            say(f"plan {name}: {note}")


def _write(name: str, model: Resolved, old: dict | None) -> None:
    plan = model.plan
    texts = {
        plan_file(name): json_text(plan),
        plan_file(name).with_name("dvc.yaml"): pipeline(model.source.made_by_pipeline),
    }
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_bytes(path, text.encode())
    say(f"plan {name}: {outlook(model)}; {_changes(old, model)}")
    for step in (old or {}).get("steps", []):
        if step not in plan["steps"]:
            _drop_step(name, step)


def _changes(old: dict | None, model: Resolved) -> str:
    """What is different from the last plan, in a few words."""
    if old is None:
        return "new"
    plan, verb = model.plan, "moved" if model.source.remote else "changed"
    words = [f"step {step} added" for step in plan["steps"] if step not in old["steps"]]
    words += [f"step {step} removed" for step in old["steps"] if step not in plan["steps"]]
    for step in plan["steps"]:
        before, after = old["revisions"].get(step), plan["revisions"].get(step)
        if before and after and before != after:
            words.append(f"{model.source.name(step)} {verb} {short(before)} → {short(after)}")
    settings = (
        "source",
        "axis",
        "tokenizer",
        "allow_duplicates",
        "blocks",
        "probe",
        "licence",
        "prompts",
        "gates",
        "on_failure",
    )
    words += [f"{key} changed" for key in (*settings, "config", "code") if old.get(key) != plan.get(key)]
    return "; ".join(words) or "unchanged"


def _drop_step(name: str, step: str) -> None:
    """Remove what was made for a step that is no longer planned; DVC's cache keeps it."""
    for kind in ("checkpoints", "onnx", "fidelity"):
        _remove(DATA / kind / name / f"step{step}")
        _remove(DATA / kind / name / f"step{step}.json")
    for stage in ("fetch", "fp16", "fidelity"):
        _remove(failure_file(name, stage, step))


def _forget(name: str) -> None:
    """Remove the plan and the outputs of a model that is no longer in params.yaml; DVC's cache keeps them."""
    for kind in ("checkpoints", "graphs", "onnx", "fidelity", "failed"):
        _remove(DATA / kind / name)
    _remove(DATA / "metrics" / f"{name}.json")
    _remove(plan_file(name).parent)
    say(f"plan {name}: removed")


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="From params.yaml to models/<id>/: check all sources, pin, write.")
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--check", action="store_true", help="write nothing; fail if models/ doesn't fit params.yaml")
    ways.add_argument("--update", action="store_true", help="take what the branches and tags of hubs are now")
    given = parser.parse_args()
    run("plan", check if given.check else lambda: main(given.update))

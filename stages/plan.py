"""From params.yaml to models/<id>/: `python -m stages.plan [--check]`.

Every source is checked, every problem of every model is listed at once; only then anything is written: the pinned
params.json and dvc.yaml of each model. `--check` writes nothing and fails if models/ no longer fits params.yaml.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from stages.command import Refusal, run, say
from stages.files import DATA, failure_file, json_text, plan_file, read_json, write_bytes
from stages.planning.pipeline import pipeline
from stages.planning.plan import planned_models
from stages.planning.resolve import Resolved, fits, wanted
from stages.planning.schema import load
from stages.sources.local import open_source
from stages.sources.pin import Digests, short


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
    say(f"plan: {len(planned)} models, as params.yaml says")


def main() -> None:
    """Resolve all models, then write."""
    params = load()
    digests = Digests()
    resolved = {name: Resolved(name, wanted(params, name), digests) for name in params.models}
    problems = [f"{name}: {problem}" for name, model in resolved.items() for problem in model.problems]
    if problems:
        heading = f"{len(problems)} problems, nothing was written" if len(problems) > 1 else "nothing was written"
        raise Refusal(heading + "".join(f"\n  {problem}" for problem in problems))
    digests.save()
    for name in planned_models():
        if name not in resolved:
            _forget(name)
    for name, model in resolved.items():
        _write(name, model.plan)
        for note in model.notes:
            say(f"plan {name}: {note}")


def _write(name: str, plan: dict) -> None:
    old = read_json(plan_file(name)) if plan_file(name).exists() else None
    texts = {
        plan_file(name): json_text(plan),
        plan_file(name).with_name("dvc.yaml"): pipeline(open_source(plan["source"]).made_by_pipeline),
    }
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            write_bytes(path, text.encode())
    say(f"plan {name}: {_changes(old, plan)}")
    for step in (old or {}).get("steps", []):
        if step not in plan["steps"]:
            _drop_step(name, step)


def _changes(old: dict | None, plan: dict) -> str:
    """What is different from the last plan, in a few words."""
    count = f"{len(plan['steps'])} steps"
    if old is None:
        return f"{count}, new"
    words = [f"step {step} added" for step in plan["steps"] if step not in old["steps"]]
    words += [f"step {step} removed" for step in old["steps"] if step not in plan["steps"]]
    for step in plan["steps"]:
        before, after = old["revisions"].get(step), plan["revisions"].get(step)
        if before and after and before != after:
            words.append(f"step {step} changed {short(before)} → {short(after)}")
    settings = ("source", "tokenizer", "probe", "licence", "prompts", "gates", "on_failure", "config")
    words += [f"{key} changed" for key in settings if old.get(key) != plan.get(key)]
    return f"{count}, {'; '.join(words) or 'unchanged'}"


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
    parser.add_argument("--check", action="store_true", help="write nothing; fail if models/ doesn't fit params.yaml")
    run("plan", check if parser.parse_args().check else main)

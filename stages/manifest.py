"""Write a model's manifest from its fidelity reports: `python -m stages.manifest MODEL`.

In: data/fidelity/MODEL, the pairs and records of the planned steps. Out: data/onnx/MODEL/manifest.json and
tokenizer/, data/metrics/MODEL.json. Nothing that failed is listed as shipped.
"""

from __future__ import annotations

import shutil

from stages.command import Refusal, say, stage
from stages.files import (
    checkpoint_folder,
    fidelity_file,
    graph_folder,
    manifest_file,
    metrics_file,
    new_folder,
    read_json,
    write_json,
)
from stages.graph.limits import HALVES
from stages.manifests.same_weights import copies, shared
from stages.manifests.seal import seal
from stages.manifests.step import described_source, file_entry, metrics_row, shipped_step
from stages.planning.plan import load_plan
from stages.sources.weights import listed
from stages.tokens.files import TOKENIZER_FILES
from stages.tokens.reading import differences


def same_tokenizer(reports: dict[str, dict]) -> dict | None:
    """How the tokenizer of all steps reads; None if they have none.

    Raises:
        Refusal: two steps read the prompts as different ids.
    """
    (first, expected), *others = ((step, report["tokenizer"]) for step, report in reports.items())
    for step, found in others:
        lines = differences(expected, found) if expected and found else ["only one has any"] * (expected != found)
        if lines:
            raise Refusal(f"steps {first} and {step} have different tokenizers: {lines[0]}")
    return expected


def copy_tokenizer(model: str, step: str) -> list[dict]:
    """Put the tokenizer's files beside the manifest; an empty folder if there are none."""
    target = manifest_file(model).parent / "tokenizer"
    with new_folder(target) as folder:
        for name in TOKENIZER_FILES:
            if (checkpoint_folder(model, step) / name).exists():
                shutil.copyfile(checkpoint_folder(model, step) / name, folder / name)
    return [file_entry(path, f"tokenizer/{path.name}") for path in sorted(target.iterdir())]


def refuse_copies(plan: dict, twins: dict[str, list[str]]) -> dict[str, str]:
    """Why the steps that hold the same weights are not shipped; which of them is what it says can't be known.

    Raises:
        Refusal: there are any, and a bad step fails the model.
    """
    reasons = {
        step: f"holds the same weights as step {listed(others)}: not both can be what they say"
        for step, others in twins.items()
    }
    if reasons and plan["on_failure"] != "exclude":
        step, reason = list(reasons.items())[-1]
        raise Refusal(f"step {step} {reason}; leave one out, or set allow_duplicates: true")
    return reasons


def main(model: str) -> None:
    """Collect and write."""
    plan = load_plan(model)
    reports = {step: read_json(fidelity_file(model, step)) for step in plan["steps"]}
    rejected = {step: report["rejected"] for step, report in reports.items() if "rejected" in report}
    records = {step: read_json(checkpoint_folder(model, step) / "checkpoint.json") for step in reports}
    sound = {step: record for step, record in records.items() if step not in rejected}
    twins = copies(sound)
    if not plan["allow_duplicates"]:
        rejected |= refuse_copies(plan, twins)
    passed = {step: report for step, report in reports.items() if step not in rejected}
    if not passed:
        reasons = "; ".join(f"step {step}: {reason}" for step, reason in rejected.items())
        raise Refusal(f"no step passed: {reasons}")
    tokenizer = same_tokenizer(passed)
    facts = read_json(graph_folder(model, "backbone") / "anatomy.json")
    files = copy_tokenizer(model, next(iter(passed)))
    steps = [shipped_step(model, step, report, plan, twins.get(step, [])) for step, report in passed.items()]
    first = records[next(iter(passed))]
    manifest = {
        "schema": 1,
        "model": model,
        "format": "f16",
        "files": ["backbone.f16.onnx", "lens.f16.onnx"],
        **{key: facts[key] for key in ("hidden_size", "num_layers", "vocab_size", "tied")},
        "anatomy": facts["description"],
        "routes": {half: read_json(graph_folder(model, half) / "weights.json")["route"] for half in HALVES},
        "axis": plan["axis"],
        "tokenizer": "tokenizer" if files else None,
        "tokenizer_files": files,
        "tokenizer_origin": first["tokenizer"],
        # Whether a page can read text that a person types.
        "live": bool(tokenizer),
        "reading": tokenizer,
        "probe": plan["probe"],
        "licence": plan["licence"],
        "base_model": (plan["card"] or {}).get("base_model"),
        "source": described_source(plan),
        "gates": next(iter(passed.values()))["gates"],
        "versions": next(iter(passed.values()))["versions"],
        "steps": steps,
        "rejected": [{"step": int(step), "reason": rejected[step]} for step in plan["steps"] if step in rejected],
        "shared_weights": shared(sound),
    }
    write_json(manifest_file(model), seal(manifest))
    write_json(metrics_file(model), {"model": model, "steps": [metrics_row(report) for report in passed.values()]})
    say(f"manifest {model}: {len(steps)} of {len(reports)} steps shipped")
    for row in manifest["rejected"]:
        say(f"manifest {model}: step {row['step']} rejected: {row['reason']}")


if __name__ == "__main__":
    stage("manifest", main, __doc__, "model")

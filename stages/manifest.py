"""Write a model's manifest from its fidelity reports: `python -m stages.manifest MODEL`.

In: data/fidelity/MODEL, the pairs and records of the planned steps. Out: data/onnx/MODEL/manifest.json and
tokenizer/, data/metrics/MODEL.json. Nothing that failed is listed as shipped.
"""

from __future__ import annotations

import shutil
from pathlib import Path

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
from stages.manifests.seal import seal
from stages.manifests.step import file_entry, metrics_row, shipped_step
from stages.planning.plan import load_plan
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


def main(model: str) -> None:
    """Collect and write."""
    plan = load_plan(model)
    reports = {step: read_json(fidelity_file(model, step)) for step in plan["steps"]}
    passed = {step: report for step, report in reports.items() if "rejected" not in report}
    rejected = [{"step": int(s), "reason": r["rejected"]} for s, r in reports.items() if "rejected" in r]
    if not passed:
        reasons = "; ".join(f"step {row['step']}: {row['reason']}" for row in rejected)
        raise Refusal(f"no step passed: {reasons}")
    tokenizer = same_tokenizer(passed)
    facts = read_json(graph_folder(model, "backbone") / "anatomy.json")
    files = copy_tokenizer(model, next(iter(passed)))
    steps = [shipped_step(model, step, report, plan) for step, report in passed.items()]
    manifest = {
        "schema": 1,
        "model": model,
        "format": "f16",
        "files": ["backbone.f16.onnx", "lens.f16.onnx"],
        **{key: facts[key] for key in ("hidden_size", "num_layers", "vocab_size", "tied")},
        "anatomy": facts["description"],
        "tokenizer": "tokenizer" if files else None,
        "tokenizer_files": files,
        "reading": tokenizer,
        "probe": plan["probe"],
        "licence": plan["licence"],
        # The folder's name alone: where it lies on this machine is nobody's business.
        "source": {"kind": plan["source"]["kind"], "name": Path(plan["source"]["path"]).name},
        "gates": next(iter(passed.values()))["gates"],
        "versions": next(iter(passed.values()))["versions"],
        "steps": steps,
        "rejected": rejected,
    }
    write_json(manifest_file(model), seal(manifest))
    write_json(metrics_file(model), {"model": model, "steps": [metrics_row(report) for report in passed.values()]})
    say(f"manifest {model}: {len(steps)} of {len(reports)} steps shipped")
    for row in rejected:
        say(f"manifest {model}: step {row['step']} rejected: {row['reason']}")


if __name__ == "__main__":
    stage("manifest", main, __doc__, "model")

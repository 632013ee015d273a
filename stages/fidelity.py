"""Measure a checkpoint's pair against torch in float32, layer by layer: `python -m stages.fidelity MODEL STEP`.

In: data/checkpoints/MODEL/step<STEP>, data/onnx/MODEL/step<STEP>, data/graphs/MODEL, the prompts, the gates.
Out: data/fidelity/MODEL/step<STEP>.json. A gate that is not met ends the stage with exit code 1.
"""

from __future__ import annotations

from stages.command import Failed, Refusal, Unreachable, say, stage
from stages.files import fidelity_file, write_json
from stages.manifests.withdraw import withdraw
from stages.planning.plan import load_plan


def main(model: str, step: str) -> None:
    """Measure, apply the gates, write the report; with `on_failure: exclude` a failure is written and not raised."""
    import torch

    from stages.measure.report import measure

    # Most of its operations are small; a second thread saves little time and, on a busy machine, costs several times
    # the CPU in waiting. ONNX Runtime keeps its own threads.
    torch.set_num_threads(1)
    withdraw(model)
    plan = load_plan(model)
    try:
        report = measure(model, step, plan)
    except Refusal as refusal:
        if plan["on_failure"] != "exclude" or isinstance(refusal, Unreachable):
            raise
        write_json(fidelity_file(model, step), {"schema": 1, "step": step, "rejected": str(refusal)})
        return
    f16 = report["f16"]
    say(
        f"fidelity {model} step {step}: {f16['cells']} cells, "
        f"top-1 {f16['top1']:.2%} ({f16['top1_strict']:.2%} strict), "
        f"KL max {_number(f16['kl_max'])}, stream rel fp32 {_number(report['fp32']['hidden_rel'])} "
        f"f16 {_number(f16['hidden_rel'])}"
    )
    if report["failed"]:
        reason = "; ".join(report["failed"])
        if plan["on_failure"] != "exclude":
            raise Failed(reason, report)
        say(f"fidelity {model} step {step}: rejected: {reason}")
        report["rejected"] = reason
    write_json(fidelity_file(model, step), report)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


if __name__ == "__main__":
    stage("fidelity", main, __doc__, "model", "step")

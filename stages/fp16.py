"""Fill the traced graphs with a checkpoint's weights, matrices as float16: `python -m stages.fp16 MODEL STEP`.

In: data/checkpoints/MODEL/step<STEP>, data/graphs/MODEL. Out: data/onnx/MODEL/step<STEP>: backbone.f16.onnx,
lens.f16.onnx, f16.json (what the cast did). No torch, no transformers; memory holds one tensor at a time.
"""

from __future__ import annotations

from stages.command import Refusal, Unreachable, say, stage
from stages.files import checkpoint_folder, graph_folder, json_text, new_folder, pair_folder, read_json
from stages.graph.fill import fill_f16
from stages.graph.limits import HALVES
from stages.graph.session import check_loads
from stages.manifests.withdraw import withdraw
from stages.planning.plan import load_plan
from stages.sources.record import open_checkpoint


def main(model: str, step: str) -> None:
    """Fill both halves, load them once, put them in place."""
    withdraw(model)
    try:
        checkpoint = open_checkpoint(model, step)
        with new_folder(pair_folder(model, step)) as folder:
            report = {}
            for half in HALVES:
                file = folder / f"{half}.f16.onnx"
                report[half] = fill_f16(graph_folder(model, half), checkpoint, file).as_json()
                check_loads(file)
                _say(model, step, half, file.stat().st_size, report[half])
            (folder / "f16.json").write_text(json_text(report))
    except Refusal as refusal:
        if load_plan(model)["on_failure"] != "exclude" or isinstance(refusal, Unreachable):
            raise
        if "rejected" not in read_json(checkpoint_folder(model, step) / "checkpoint.json"):
            say(f"fp16 {model} step {step}: rejected: {refusal}")
        with new_folder(pair_folder(model, step)) as folder:
            (folder / "f16.json").write_text(json_text({"rejected": str(refusal)}))


def _say(model: str, step: str, half: str, size: int, report: dict) -> None:
    kept, lost = report["overflow_kept_fp32"], sum(report["underflow_to_zero"].values())
    notes = f", kept in fp32 for overflow: {', '.join(kept)}" if kept else ""
    notes += f", {lost} elements underflow to zero" if lost else ""
    say(f"fp16 {model} step {step}: {half} {size / 1e6:.1f} MB{notes}")


if __name__ == "__main__":
    stage("fp16", main, __doc__, "model", "step")

"""How a run ended, step by step: `python -m stages.summary [MODEL]`. Exit code 1 unless every step is accounted for."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

from stages.command import Refusal, run
from stages.files import (
    checkpoint_folder,
    failure_file,
    fidelity_file,
    graph_folder,
    manifest_file,
    pair_folder,
    read_json,
)
from stages.graph.limits import HALVES
from stages.manifests.notes import notes
from stages.planning.plan import load_plan, planned_models


def _note(model: str, outputs: dict[str, Path], step: str | None) -> str | None:
    """Why a stage refused, unless its output is there all the same: DVC may have restored it without a run."""
    for stage, output in outputs.items():
        path = failure_file(model, stage, step)
        if path.exists() and not output.exists():
            return f"{stage}: {read_json(path)['reason']}"
    return None


def step_row(model: str, step: str, shipped: dict[str, dict]) -> tuple[str, str | None, dict | None]:
    """The status of a step, the reason if it did not go through, its numbers if it was measured."""
    outputs = {"fetch": checkpoint_folder(model, step), "fp16": pair_folder(model, step)}
    reason = _note(model, outputs | {"fidelity": fidelity_file(model, step)}, step)
    if reason:
        return "failed", reason, None
    if step in shipped:
        return "shipped", None, shipped[step]["fidelity"]
    if not fidelity_file(model, step).exists():
        return "not made", None, None
    report = read_json(fidelity_file(model, step))
    if "rejected" in report:
        return "rejected", report["rejected"], None
    return "measured", None, None


def main(models: list[str]) -> None:
    """Print a row per step and a line per reason."""
    table = Table("model", "step", "status", "cells", "top-1", "KL max", "logits rel")
    reasons, open_ends = [], 0
    for model in models:
        path = manifest_file(model)
        made = read_json(path) if path.exists() else None
        shipped = {str(step["step"]): step for step in made["steps"]} if made else {}
        reasons += [f"{model}: {line}" for line in notes(made)] if made else []
        halves = {half: graph_folder(model, half) for half in HALVES}
        note = _note(model, halves | {"manifest": path}, None)
        if note:
            reasons.append(f"{model}: {note}")
            open_ends += 1
        for step in load_plan(model)["steps"]:
            status, reason, numbers = step_row(model, step, shipped)
            if reason:
                reasons.append(f"{model} step {step}: {status}: {reason}")
            open_ends += status not in ("shipped", "rejected")
            cells = ["", "", "", ""]
            if numbers:
                cells = [f"{numbers['cells']}", f"{numbers['top1']:.2%}"]
                cells += [f"{numbers['kl_max']:.1e}", f"{numbers['logits_rel']:.1e}"]
            table.add_row(model, step, status, *cells)
    console = Console()
    console.print(table)
    for reason in reasons:
        console.print(reason, soft_wrap=True, markup=False, highlight=False)
    if open_ends:
        raise Refusal("not everything went through: see above")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="How a run ended, step by step.")
    parser.add_argument("model", nargs="?")
    chosen = parser.parse_args().model
    run("summary", lambda: main([chosen] if chosen else planned_models()))

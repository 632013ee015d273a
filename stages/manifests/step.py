"""One step's row in the manifest: the fields that clients know, and what the step is and is worth."""

from __future__ import annotations

from pathlib import Path

from stages.command import Refusal
from stages.files import checkpoint_folder, pair_folder, read_json, sha256_file
from stages.graph.limits import HALVES


def file_entry(path: Path, name: str) -> dict:
    """A file as the manifest lists it."""
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256_file(path)}


def described_source(plan: dict) -> dict:
    """Where a model's checkpoints come from. Of a folder the name alone: where it lies is nobody's business."""
    source = dict(plan["source"])
    path = source.pop("path", None)
    return {**source, **({"name": Path(path).name} if path else {}), "code": plan["code"]}


def shipped_step(model: str, step: str, report: dict, plan: dict, twins: list[str]) -> dict:
    """A shipped step.

    Args:
        model: the model.
        step: its step.
        report: its fidelity report, gates met.
        plan: the model's plan.
        twins: other steps with the same weights, allowed.

    Raises:
        Refusal: the report is of other weights than the record, or of other files than those that are there.
    """
    record = read_json(checkpoint_folder(model, step) / "checkpoint.json")
    if record["weight_digest"] != report["weight_digest"]:
        raise Refusal(f"step {step}: the report is of other weights than the record: run `make repro`")
    folder = pair_folder(model, step)
    entries = {path.name: file_entry(path, f"step{step}/{path.name}") for path in sorted(folder.iterdir())}
    if {name: entry["sha256"] for name, entry in entries.items()} != report["files"]:
        raise Refusal(f"step {step}: the report is of other files than those in {folder}: run `make repro`")
    cast = read_json(folder / "f16.json")
    pair = {half: entries[f"{half}.f16.onnx"] for half in HALVES}
    return {
        "step": int(step),
        "fp32_max_diff": report["fp32"]["logits_max_diff"],
        "fp32_top1_match_all_pos": report["fp32"]["top1"],
        "f16_max_diff": report["f16"]["logits_max_diff"],
        "f16_top1_match_all_pos": report["f16"]["top1"],
        "top1_token": report["probe"]["top1_token"] if report["probe"] else None,
        "backbone_bytes": pair["backbone"]["bytes"],
        "lens_bytes": pair["lens"]["bytes"],
        "files": [
            *(pair[half] | {key: cast[half][key] for key in ("bytes_after_cast", "largest_tensor")} for half in HALVES),
            entries["f16.json"],
        ],
        "overflow_kept_fp32": sorted(name for half in HALVES for name in cast[half]["overflow_kept_fp32"]),
        "underflow_to_zero": sum(n for half in HALVES for n in cast[half]["underflow_to_zero"].values()),
        "source": {
            "kind": plan["source"]["kind"],
            **({"repository": plan["source"]["repo"]} if "repo" in plan["source"] else {}),
            **({"folder": plan["folders"][step]} if (plan["folders"][step] or ".") != "." else {}),
            "revision": record["revision"],
            "weight_digest": record["weight_digest"],
            "licence": plan["licence"],
            **{key: record[key] for key in ("dequantised",) if key in record},
        },
        **({"duplicate_of": [int(other) for other in twins]} if twins else {}),
        "fidelity": metrics_row(report),
    }


def metrics_row(report: dict) -> dict:
    """The numbers of a report that are compared over steps."""
    f16 = report["f16"]
    return {
        "step": int(report["step"]),
        "cells": f16["cells"],
        "top1": f16["top1"],
        "top1_strict": f16["top1_strict"],
        "final_top1": f16["final_top1"],
        "kl_mean": f16["kl_mean"],
        "kl_max": f16["kl_max"],
        "hidden_rel": f16["hidden_rel"],
        "logits_rel": f16["logits_rel"],
        "fp32_hidden_rel": report["fp32"]["hidden_rel"],
        "fp32_logits_rel": report["fp32"]["logits_rel"],
        "fp32_own_rounding": report["fp32_own_rounding"],
        "identity_rel": report["identity_rel"],
        "max_abs": max(row["max_abs"] for row in report["layers"]),
        "probe_probability": report["probe"]["probability"] if report["probe"] else None,
    }

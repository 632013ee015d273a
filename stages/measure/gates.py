"""What a pair must reach to be shipped."""

from __future__ import annotations

import math

# Where float32 itself can't tell a model's streams to within `fp32_rel`, so many times its own rounding is allowed.
ROUNDINGS = 2


def beyond_fp32(report: dict, gates: dict) -> bool:
    """Whether any float32 comparison of a report is above its gate, rounding aside."""
    values = [row[key] for row in report["layers"] for key in ("fp32_hidden_rel", "fp32_logits_rel")]
    values += [row[key] for row in report["shapes"] for key in ("fp32_rel", "stored_rel")]
    return any(_above(value, gates["fp32_rel"]) for value in values)


def _above(value: float, limit: float) -> bool:
    return not (math.isfinite(value) and value <= limit)


def failures(report: dict, gates: dict) -> list[str]:
    """Every gate that a report does not meet, in words, the number found and the number allowed.

    Args:
        report: from the fidelity stage.
        gates: thresholds, as in params.yaml.
    """
    found = []
    rounding = report["fp32_own_rounding"]
    limits = gates if rounding is None else gates | {"fp32_rel": max(gates["fp32_rel"], ROUNDINGS * rounding)}

    def at_most(what: str, value: float, gate: str) -> None:
        if _above(value, limits[gate]):
            found.append(f"{what} {value:.3g} (allowed {gate}: {limits[gate]:.3g})")

    at_most("lens(hidden[L]) differs from the model's logits by rel", report["identity_rel"], "identity_rel")
    for name, gate in (("fp32", "fp32_rel"), ("f16", "f16_rel")):
        layer = max(report["layers"], key=lambda row: _order(row[f"{name}_hidden_rel"]))
        at_most(f"{name} stream, layer {layer['layer']}: rel", layer[f"{name}_hidden_rel"], gate)
        layer = max(report["layers"], key=lambda row: _order(row[f"{name}_logits_rel"]))
        at_most(f"{name} logits, layer {layer['layer']}: rel", layer[f"{name}_logits_rel"], gate)
    for shape in report["shapes"]:
        at_most(f"fp32 at {describe(shape)}: rel", shape["fp32_rel"], "fp32_rel")
        at_most(f"f16 against its own weights at {describe(shape)}: rel", shape["stored_rel"], "fp32_rel")
    layer = max(report["layers"], key=lambda row: _order(row["f16_kl_max"]))
    at_most(f"KL of a cell, layer {layer['layer']}:", layer["f16_kl_max"], "f16_kl")
    top1 = report["f16"]["top1"]
    if not top1 >= gates["f16_top1"]:
        found.append(f"top-1 agrees in {top1:.4%} of cells (expected f16_top1: {gates['f16_top1']:.4%})")
    if report["weights"]["different"]:
        names = report["weights"]["different"]
        found.append(f"{len(names)} stored weights are not the cast of the checkpoint's: {', '.join(names[:3])}")
    return found


def _order(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def describe(shape: dict) -> str:
    """A shape in words: `(2, 9) left padding`."""
    side = f" {shape['padding']} padding" if shape["padding"] else ""
    return f"({shape['batch']}, {shape['tokens']}){side}"

"""What a person should know of a manifest before building on it, a line each."""

from __future__ import annotations

import re

from stages.sources.weights import listed


def may_forbid(licence: str | None) -> bool:
    """Whether a licence, as a model card names it, may forbid passing the files on: non-commercial, `other`, none."""
    words = re.split(r"[^a-z0-9]+", (licence or "other").lower())
    return words[0] in ("other", "unknown") or "nc" in words


def notes(manifest: dict) -> list[str]:
    """The lines, without the model's name."""
    lines = []
    if may_forbid(manifest["licence"]):
        name = manifest["licence"] or "not named"
        lines.append(f"licence {name}: it may forbid passing these files on")
    for step in manifest["steps"]:
        twins = step.get("duplicate_of")
        if twins:
            lines.append(
                f"step {step['step']} holds the same weights as step {listed(list(map(str, twins)))}, as allowed"
            )
    for row in manifest["shared_weights"]:
        steps, tensors = listed(list(map(str, row["steps"])), 6), row["tensors"]
        lines.append(f"steps {steps} share {row['share']:.0%} of their weights ({listed(tensors)})")
    if manifest["source"]["code"]:
        names = [file["name"] for file in manifest["source"]["code"]["files"]]
        lines.append(f"made with code of its own source ({listed(names)})")
    origin = manifest["tokenizer_origin"]
    if not manifest["live"]:
        lines.append(f"no text can be typed for it: {origin['reason'] if origin else 'it has no tokenizer'}")
    return lines

"""The stages of one model in this process, in DVC's order, for tests that need their outputs and not DVC."""

from __future__ import annotations

import textwrap
from pathlib import Path

from stages import backbone, fetch, fidelity, fp16, lens, manifest, plan


def write_params(source: str, extra: str = "", gates: str = "") -> None:
    """A params.yaml with one model, `m`."""
    model = textwrap.indent(f"source: {source}\nprobe: w1 w2\n{extra}", "    ")
    common = "gates:\n" + textwrap.indent(gates, "  ") if gates else ""
    Path("params.yaml").write_text(f"{common}\nmodels:\n  m:\n{model}\n")


def trace() -> None:
    """plan, backbone, lens."""
    plan.main()
    backbone.main("m")
    lens.main("m")


def make(step: str) -> None:
    """fetch, fp16, fidelity of one step."""
    fetch.main("m", step)
    fp16.main("m", step)
    fidelity.main("m", step)


def ship(*steps: str) -> None:
    """Everything, from the plan to the manifest."""
    trace()
    for step in steps:
        make(step)
    manifest.main("m")

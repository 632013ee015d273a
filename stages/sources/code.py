"""Code that comes with a checkpoint: run only where its source says so, pinned by hash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.sources.kinds import open_source
from stages.sources.transfer import matches


def bring_code(plan: dict[str, Any]) -> Path | None:
    """A folder with the config and the pinned code of a model, None for a model without any.

    Raises:
        Refusal: the code is gone, or is not what was pinned.
    """
    if not plan["code"]:
        return None
    source = open_source(plan)
    return check_code(plan, source.bring_code(plan["steps"][0]))


def check_code(plan: dict[str, Any], folder: Path) -> Path | None:
    """The folder, if its code is what the plan pinned; None for a model without any.

    Raises:
        Refusal: it is not.
    """
    if not plan["code"]:
        return None
    names = {file["name"] for file in plan["code"]["files"]}
    there = {path.name for path in folder.glob("*.py")}
    changed = [f["name"] for f in plan["code"]["files"] if f["name"] not in there or not matches(folder / f["name"], f)]
    changed += sorted(there - names)
    if changed:
        raise Refusal(f"{', '.join(changed)} in {folder} is not the code that was planned: read it, then `make plan`")
    return folder


def traced_config(plan: dict[str, Any]) -> dict:
    """The plan's config; without its wish for remote code where the source says that it is to be ignored."""
    ignored = plan["source"].get("trust_remote_code") is False
    return {key: value for key, value in plan["config"].items() if not (ignored and key == "auto_map")}

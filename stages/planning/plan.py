"""models/<id>/params.json: the pinned plan of a model, as the stages read it."""

from __future__ import annotations

from typing import Any

from stages.command import Refusal
from stages.files import plan_file, read_json


def load_plan(model: str) -> dict[str, Any]:
    """The plan of a model.

    Raises:
        Refusal: there is none.
    """
    try:
        return read_json(plan_file(model))
    except FileNotFoundError:
        raise Refusal(f"{plan_file(model)} is not there: run `make plan`") from None


def planned_models() -> list[str]:
    """The models that have a plan, in alphabetical order."""
    return sorted(path.parent.name for path in plan_file("x").parent.parent.glob("*/params.json"))

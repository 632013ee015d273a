"""What a patch is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """One replacement.

    Attributes:
        name: the function or method that is replaced, as `function` or `Class.method`.
        modules: the modules under `transformers.models` that have it.
        replacement: what stands in for it.
        why: what the original does that can't be traced, and when the patch can go.
    """

    name: str
    modules: tuple[str, ...]
    replacement: Callable[..., Any]
    why: str

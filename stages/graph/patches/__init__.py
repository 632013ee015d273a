"""Parts of transformers' models that no tracer takes as they are, and what stands in for them while one is traced.

Each is the same formula in a form that a graph can hold; the proof compares the graph with the model as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from stages.graph.patches import experts, recurrences, rotations

PATCHES = [*recurrences.PATCHES, *experts.PATCHES, *rotations.PATCHES]


@contextmanager
def patched() -> Iterator[None]:
    """All patches of the modules that are loaded, for the time of a block."""
    with ExitStack() as stack:
        for patch in PATCHES:
            for name in patch.modules:
                holder: Any = sys.modules.get(f"transformers.models.{name}")
                *outer, attribute = patch.name.split(".")
                for part in outer:
                    holder = getattr(holder, part, None)
                if hasattr(holder, attribute):
                    stack.enter_context(mock.patch.object(holder, attribute, patch.replacement))
        yield

"""All kinds of sources."""

from __future__ import annotations

from typing import Any

from stages.sources.base import Source
from stages.sources.gguf import GgufFile
from stages.sources.hub import HubRepository
from stages.sources.local import DemoRun, Folder, TrainerRun

# A new kind is a class with the methods of Source, a line here and a key in planning/schema.py.
KINDS: dict[str, type[Source]] = {
    "trainer": TrainerRun,
    "folder": Folder,
    "gguf": GgufFile,
    "repo": HubRepository,
    "demo": DemoRun,
}


def open_source(plan: dict[str, Any]) -> Source:
    """The source of a plan, or of one in the making: `source`, and `revisions`, `folders`, `files` as far as known."""
    return KINDS[plan["source"]["kind"]](plan)

"""Names that come from outside (indexes, hubs, tokenizer files): accepted only if they can't leave their folder."""

from __future__ import annotations

import re
from pathlib import Path

from stages.command import Refusal

# One part of a path: ASCII, no separator, no leading dot, and no trailing one, which Windows drops.
PART = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+=-]*[A-Za-z0-9_+=-])?")
RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
COMMIT = re.compile(r"[0-9a-f]{40}")


def is_name(name: object) -> bool:
    """Whether this is a plain file or folder name: no path, no odd character, none that Windows reserves."""
    return isinstance(name, str) and bool(PART.fullmatch(name)) and not RESERVED.fullmatch(name) and len(name) <= 200


def is_path(path: object) -> bool:
    """Whether this is a relative path of plain names, with forward slashes."""
    return isinstance(path, str) and all(is_name(part) for part in path.split("/"))


def inside(path: Path, root: Path) -> Path:
    """The path, if what it leads to lies in `root`.

    A snapshot of the Hugging Face cache links to the blobs beside it, which counts as inside.

    Raises:
        Refusal: a symbolic link leads out.
    """
    home, real = root.resolve(), path.resolve()
    caches = [place.parent.parent for place in (home, *home.parents) if place.parent.name == "snapshots"]
    if any(real.is_relative_to(place) for place in [home, *(cache / "blobs" for cache in caches)]):
        return path
    raise Refusal(f"{path} is a link that leads out of {root}: put the file itself there")

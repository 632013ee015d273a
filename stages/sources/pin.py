"""Pinning by content, cheap to check again; and what of a config makes a difference."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from stages.files import TEMPORARY, canonical, read_json, sha256_file, write_json

CACHE = TEMPORARY / "digests.json"

# Keys of config.json that neither shape the graph nor the arithmetic.
BOOKKEEPING = {
    "_name_or_path",
    "architectures",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
}


def essential(config: dict) -> dict:
    """A config without its book-keeping: what the graph depends on."""
    return {key: value for key, value in config.items() if key not in BOOKKEEPING}


def differing_keys(config: dict, other: dict) -> list[str]:
    """The keys, book-keeping aside, in which two configs differ."""
    one, two = essential(config), essential(other)
    return sorted(key for key in one.keys() | two.keys() if one.get(key) != two.get(key))


def content_digest(files: list[dict]) -> str:
    """The revision of a checkpoint that has no commit, from the sha256 of each of its files by bare name."""
    hashes = {Path(file["name"]).name: file["sha256"] for file in files}
    return "sha256:" + hashlib.sha256(canonical(hashes)).hexdigest()


class Digests:
    """sha256 of files, remembered by path, size and time of change, so that a second plan reads no weights."""

    def __init__(self) -> None:
        try:
            self._known = read_json(CACHE)
        except (FileNotFoundError, json.JSONDecodeError):
            self._known = {}
        self._learned: dict[str, list[str]] = {}

    def of(self, path: Path) -> str:
        """The sha256 of a file."""
        stat = path.stat()
        mark = f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ino}"
        key = str(path.resolve())
        if self._known.get(key, ["", ""])[0] != mark:
            self._known[key] = self._learned[key] = [mark, sha256_file(path)]
        return self._known[key][1]

    def save(self) -> None:
        """Keep what was learned, beside what others learned meanwhile."""
        if self._learned:
            write_json(CACHE, Digests()._known | self._learned)
            self._learned = {}


def short(pinned: str) -> str:
    """A revision as people read it."""
    return re.sub(r"^sha256:", "", pinned)[:12]

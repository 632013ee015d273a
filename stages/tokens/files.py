"""Which files in a folder are a tokenizer's, and of what kind its vocabulary is."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Collection
from pathlib import Path

# What a browser, or transformers, reads beside a checkpoint.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
SENTENCEPIECE_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def is_tiktoken(file: Path) -> bool:
    """Whether a file is a table of ranks in tiktoken's text form: `<base64> <rank>` on its first line."""
    with file.open("rb") as opened:
        words = opened.readline(4096).split()
    if len(words) != 2 or not words[1].isdigit():
        return False
    try:
        base64.b64decode(words[0], validate=True)
    except binascii.Error:
        return False
    return True


def _holders(names: Collection[str]) -> tuple[str, list[str]] | None:
    """The kind of a vocabulary and the files that hold it, told by their names alone."""
    models = [name for name in SENTENCEPIECE_FILES if name in names]
    models += sorted(name for name in names if name.endswith(".tiktoken"))
    if models:
        return "model", models[:1]
    for kind, files in (("bpe", ["vocab.json", "merges.txt"]), ("wordpiece", ["vocab.txt"])):
        if all(name in names for name in files):
            return kind, files
    return None


def vocabulary(folder: Path) -> tuple[str, list[Path]] | None:
    """The vocabulary of a tokenizer that has no tokenizer.json.

    Returns:
        Its kind, `sentencepiece`, `tiktoken`, `bpe` or `wordpiece`, and its files; None if there is none.
    """
    found = _holders({path.name for path in folder.iterdir() if path.is_file()})
    if not found:
        return None
    kind, files = found[0], [folder / name for name in found[1]]
    if kind == "model":
        kind = "tiktoken" if is_tiktoken(files[0]) else "sentencepiece"
    return kind, files


def tokenizer_names(names: Collection[str]) -> list[str]:
    """Those of a folder's names that say how its tokenizer reads; empty if there is no tokenizer."""
    files = [name for name in TOKENIZER_FILES if name in names]
    if "tokenizer.json" in files:
        return files
    found = _holders(names)
    if found:
        return found[1] + files
    return files if "tokenizer_config.json" in files else []


def holds_vocabulary(names: Collection[str]) -> bool:
    """Whether a folder with these names holds the tokens themselves, and not only settings."""
    return "tokenizer.json" in names or _holders(names) is not None


def tokenizer_files(folder: Path) -> list[Path]:
    """All files that say how the tokenizer in a folder reads; empty if there is no tokenizer."""
    return [folder / name for name in tokenizer_names({path.name for path in folder.iterdir() if path.is_file()})]

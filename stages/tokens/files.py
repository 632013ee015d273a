"""Which files in a folder are a tokenizer's, and of what kind its vocabulary is."""

from __future__ import annotations

import base64
import binascii
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


def vocabulary(folder: Path) -> tuple[str, list[Path]] | None:
    """The vocabulary of a tokenizer that has no tokenizer.json.

    Returns:
        Its kind, `sentencepiece`, `tiktoken`, `bpe` or `wordpiece`, and its files; None if there is none.
    """
    models = [folder / name for name in SENTENCEPIECE_FILES if (folder / name).is_file()]
    models += sorted(folder.glob("*.tiktoken"))
    if models:
        return ("tiktoken" if is_tiktoken(models[0]) else "sentencepiece"), models[:1]
    for kind, names in (("bpe", ("vocab.json", "merges.txt")), ("wordpiece", ("vocab.txt",))):
        if all((folder / name).is_file() for name in names):
            return kind, [folder / name for name in names]
    return None


def tokenizer_files(folder: Path) -> list[Path]:
    """All files that say how the tokenizer in a folder reads; empty if there is no tokenizer."""
    files = [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    if folder / "tokenizer.json" in files:
        return files
    found = vocabulary(folder)
    if found:
        return found[1] + files
    return files if folder / "tokenizer_config.json" in files else []

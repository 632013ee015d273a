"""Texts to token ids and back, with the tokenizer.json that a browser reads."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tokenizers import Tokenizer

from stages.command import Refusal
from stages.files import canonical, read_json

# What is shown for an id that the model has a row for and the tokenizer has no token for.
PLACEHOLDER = "<no token>"


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer.json of a folder, or None if there is none.

    Raises:
        Refusal: the file is no tokenizer.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises bare Exception for whatever it can't parse
        raise Refusal(f"{file} can't be read as a tokenizer ({error})") from None
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids of a text, special tokens as the tokenizer itself adds them."""
    return tokenizer.encode(text).ids


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """One token as people read it: its leading space kept, bytes that are no whole character as U+FFFD.

    Decoders strip the space in front of a text, so the token is decoded after another one: an `a`, which no byte
    can join, or itself where that doesn't decode apart.

    Args:
        tokenizer: the tokenizer.
        token: an id, not negative.

    Returns:
        The text, never empty; a special token's name; PLACEHOLDER for an id that the tokenizer has no token for.
    """
    name = tokenizer.id_to_token(token)
    if name is None:
        return PLACEHOLDER
    added = tokenizer.get_added_tokens_decoder().get(token)
    if added is not None and added.special:
        return name
    letter = tokenizer.token_to_id("a")
    for front in ([] if letter is None else [letter]) + [token]:
        before, whole = (tokenizer.decode(ids, skip_special_tokens=False) for ids in ([front], [front, token]))
        if whole.startswith(before) and whole != before:
            return whole[len(before) :]
    return tokenizer.decode([token], skip_special_tokens=False) or name


def read_prompts(file: Path) -> list[dict]:
    """The prompts: `{"id", "kind", "text", "gold"}` each.

    Raises:
        Refusal: the file is not there or not such a list.
    """
    try:
        prompts = read_json(file)
    except FileNotFoundError:
        raise Refusal(f"{file} is not there: `prompts` in params.yaml names it") from None
    except ValueError as error:
        raise Refusal(f"{file} is not JSON ({error})") from None
    keys = {"id", "text"}
    if not isinstance(prompts, list) or not prompts or not all(isinstance(p, dict) and keys <= set(p) for p in prompts):
        raise Refusal(f"{file}: expected a list of objects with id and text")
    names = [prompt["id"] for prompt in prompts]
    if len(set(names)) != len(names) or not all(prompt["text"] for prompt in prompts):
        raise Refusal(f"{file}: every prompt needs an id of its own and a text that is not empty")
    return prompts


def reading(tokenizer: Tokenizer, prompts: list[dict]) -> dict:
    """How a tokenizer reads: what any other reader of it must arrive at.

    Returns:
        `{"size", "vocabulary_sha256", "golden_ids": [{"id", "text", "ids"}]}`, the prompts in their order.
    """
    vocabulary = tokenizer.get_vocab(with_added_tokens=True)
    return {
        "size": len(vocabulary),
        "vocabulary_sha256": hashlib.sha256(canonical(vocabulary)).hexdigest(),
        "golden_ids": [{"id": p["id"], "text": p["text"], "ids": encode(tokenizer, p["text"])} for p in prompts],
    }


def differences(expected: dict, got: dict) -> list[str]:
    """One line for each prompt, counted from 0, that two readings have different ids for."""
    pairs = list(zip(expected["golden_ids"], got["golden_ids"], strict=False))
    if len(expected["golden_ids"]) != len(got["golden_ids"]) or any(a["text"] != b["text"] for a, b in pairs):
        return ["they were measured on different prompts"]
    lines = [f"prompt {n} ({a['id']}): expected {a['ids']} got {b['ids']}" for n, (a, b) in enumerate(pairs) if a != b]
    if not lines and expected["vocabulary_sha256"] != got["vocabulary_sha256"]:
        return ["the same ids stand for other tokens (the vocabularies differ; no prompt shows it)"]
    return lines

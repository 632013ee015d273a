"""Second readings: a tokenizer's own files read without the code that converts them."""

from __future__ import annotations

import base64
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from stages.tokens.declared import json_object

GPT2_SPLIT = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# How the classes that read vocab.json and merges.txt split a text, and the normal form that they bring it to first.
SPLITS: dict[str, tuple[str, str | None]] = {
    "GPT2Tokenizer": (GPT2_SPLIT, None),
    "RobertaTokenizer": (GPT2_SPLIT, None),
    "GPTNeoXTokenizer": (GPT2_SPLIT, "NFC"),
    "Qwen2Tokenizer": (LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}"), "NFC"),
}
# Classes whose ids are those of fairseq: four special tokens in front, every other piece one further.
FAIRSEQ = {"XLMRobertaTokenizer": ("<s>", "<pad>", "</s>", "<unk>"), "XGLMTokenizer": ("<s>", "<pad>", "</s>", "<unk>")}


class Unproven(Exception):
    """Why a tokenizer can't be shipped, in one line."""


@dataclass(frozen=True)
class Reading:
    """One reading of a tokenizer's files.

    Attributes:
        name: whose it is, with its version.
        ids: a text's ids, nothing added at its ends unless `whole`.
        tokens: the token of every id that the files name.
        whole: `ids` also adds what belongs to the ends.
    """

    name: str
    ids: Callable[[str], list[int]]
    tokens: dict[int, str]
    whole: bool = False


def byte_characters() -> dict[int, str]:
    """The printable character that byte-level vocabularies write for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def sentencepiece(file: Path, name: str) -> Reading:
    """A SentencePiece model, read by the library that made it.

    Args:
        file: the model.
        name: the tokenizer's class, for its ids where they aren't the model's.
    """
    from sentencepiece import SentencePieceProcessor

    try:
        model = SentencePieceProcessor(model_file=str(file))
    except (OSError, RuntimeError):
        raise Unproven(f"{file.name} is no SentencePiece model and no tiktoken table") from None
    pieces = {n: model.id_to_piece(n) for n in range(model.get_piece_size())}
    library = f"sentencepiece {version('sentencepiece')}"
    if name not in FAIRSEQ:
        return Reading(library, model.encode, pieces)
    special = FAIRSEQ[name]
    moved = {n: special.index(piece) if piece in special else n + 1 for n, piece in pieces.items()}
    tokens = dict(enumerate(special)) | {moved[n]: piece for n, piece in pieces.items()}
    return Reading(library, lambda text: [moved[n] for n in model.encode(text)], tokens)


def tiktoken(file: Path) -> Reading:
    """Llama 3's table of ranks, read by tiktoken; how a text is split stands in no file, it is the published rule."""
    from tiktoken import Encoding

    lines = [line.split() for line in file.read_bytes().splitlines() if line]
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    if any(bytes([byte]) not in ranks for byte in range(256)):
        raise Unproven(f"{file.name} lacks some of the 256 bytes")
    encoding = Encoding("checkpoint", pat_str=LLAMA3_SPLIT, mergeable_ranks=ranks, special_tokens={})
    characters = byte_characters()
    tokens = {rank: "".join(characters[byte] for byte in token) for token, rank in ranks.items()}
    return Reading(f"tiktoken {version('tiktoken')}", encoding.encode_ordinary, tokens)


def merged(word: list[str], ranks: dict[tuple[str, ...], int]) -> list[str]:
    """A word's characters, the pair of the lowest rank joined again and again until no pair has one."""
    while len(word) > 1:
        best = min(zip(word, word[1:], strict=False), key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            break
        joined, position = [], 0
        while position < len(word):
            width = 2 if tuple(word[position : position + 2]) == best else 1
            joined.append("".join(word[position : position + width]))
            position += width
        word = joined
    return word


def merges(vocabulary: Path, table: Path, name: str, prefix_space: bool) -> Reading | None:
    """Byte-level BPE, merged pair by pair as merges.txt says; None for a class whose split isn't known here.

    Args:
        vocabulary: vocab.json.
        table: merges.txt.
        name: the tokenizer's class.
        prefix_space: whether a text that starts without a space is given one.
    """
    import regex

    if name not in SPLITS:
        return None
    pattern, form = SPLITS[name]
    split, characters, ids = regex.compile(pattern), byte_characters(), json_object(vocabulary)
    lines = [line for line in table.read_text(encoding="utf-8").split("\n") if not line.startswith("#version")]
    ranks = {tuple(line.split(" ")): rank for rank, line in enumerate(filter(None, lines))}

    def read(text: str) -> list[int]:
        text = unicodedata.normalize(form, text) if form else text
        text = " " + text if prefix_space and not text.startswith(" ") else text
        words = ([characters[byte] for byte in word.encode()] for word in split.findall(text))
        pieces = [piece for word in words for piece in merged(word, ranks)]
        lacking = next((piece for piece in pieces if piece not in ids), None)
        if lacking is not None:
            raise Unproven(f"{vocabulary.name} has no {lacking!r}")
        return [ids[piece] for piece in pieces]

    return Reading(f"a merge by merge reading of {table.name}", read, {n: token for token, n in ids.items()})


def wordpiece(file: Path, config: dict[str, Any]) -> Reading:
    """WordPiece, read by the Python class that transformers keeps for BERT.

    Args:
        file: vocab.txt.
        config: tokenizer_config.json.
    """
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    keys = ("do_lower_case", "tokenize_chinese_chars", "strip_accents", "do_basic_tokenize", "never_split")
    keys += ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
    slow = BertTokenizerLegacy(str(file), **{key: config[key] for key in keys if key in config})
    tokens = {n: token for token, n in slow.vocab.items()}
    return Reading(f"transformers {version('transformers')} BertTokenizerLegacy", slow.encode, tokens, whole=True)


def own(tokenizer: Any) -> Reading:
    """Where nothing else reads the files: the object that AutoTokenizer made of them, before it was saved."""
    name = f"AutoTokenizer's own {type(tokenizer).__name__}, transformers {version('transformers')}"
    return Reading(name, tokenizer.encode, {n: token for token, n in tokenizer.get_vocab().items()}, whole=True)

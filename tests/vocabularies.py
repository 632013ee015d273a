"""Tiny real tokenizers in the files that come without a tokenizer.json, each of its kind's own library."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

from sentencepiece import SentencePieceTrainer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from stages.tokens.second import byte_characters
from stages.tokens.texts import TEXTS

LINES = [text for text in TEXTS if text.strip()] * 20


def sentencepiece_model(kind: str, size: int, **options) -> bytes:
    """A SentencePiece model of the texts that conversions are proven on."""
    written = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(LINES),
        model_writer=written,
        model_type=kind,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    return written.getvalue()


def write(folder: Path, model_type: str, config: dict | None = None, **files: bytes) -> Path:
    """A folder of these files (`__` in a name stands for a dot), config.json and tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def write_llama(folder: Path, **options) -> Path:
    """Llama's: BPE with bytes for what it lacks, no normalisation, `<s>` in front."""
    options = {"byte_fallback": True, "normalization_rule_name": "identity", **options}
    model = sentencepiece_model("bpe", 700, remove_extra_whitespaces=False, **options)
    return write(folder, "llama", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}, tokenizer__model=model)


def write_t5(folder: Path) -> Path:
    """T5's: unigram, NFKC, spaces collapsed, `</s>` at the end."""
    model = sentencepiece_model("unigram", 400, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    return write(folder, "t5", {"tokenizer_class": "T5Tokenizer", "extra_ids": 4}, spiece__model=model)


def byte_level(size: int) -> tuple[bytes, bytes]:
    """vocab.json and merges.txt."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, special_tokens=special)
    )
    model = json.loads(tokenizer.to_str())["model"]
    table = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in model["merges"])
    return json.dumps(model["vocab"]).encode(), table.encode()


def write_gpt2(folder: Path, model_type: str = "gpt2", config: dict | None = None) -> Path:
    """GPT-2's: byte-level BPE."""
    vocabulary, merges = byte_level(500)
    return write(folder, model_type, config, vocab__json=vocabulary, merges__txt=merges)


def write_tiktoken(folder: Path, model_type: str = "llama") -> Path:
    """Llama 3's: a table of ranks, and special tokens numbered after it."""
    byte_of = {character: byte for byte, character in byte_characters().items()}
    tokens = [token for token in json.loads(byte_level(500)[0]) if token != "<|endoftext|>"]
    rows = [base64.b64encode(bytes(byte_of[character] for character in token)) for token in tokens]
    table = b"".join(b"%s %d\n" % (row, rank) for rank, row in enumerate(rows))
    names = ("<|begin_of_text|>", "<|end_of_text|>")
    added = {str(len(rows) + n): {"content": name, "special": True} for n, name in enumerate(names)}
    config = {"bos_token": names[0], "eos_token": names[1], "added_tokens_decoder": added}
    config |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    return write(folder, model_type, config, tokenizer__model=table)


def write_bert(folder: Path) -> Path:
    """BERT's: WordPiece, `[CLS]` and `[SEP]` around a text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "capital", "##s", "##e", "is"]
    words += sorted({character for text in TEXTS for character in text.lower() if character.strip()})
    config = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    return write(folder, "bert", config, vocab__txt="\n".join(words).encode())

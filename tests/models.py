"""Tiny real checkpoints: random weights, norms and biases perturbed so that a wrong formula shows."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast
from transformers.utils import logging

logging.set_verbosity_error()
logging.disable_progress_bar()

VOCABULARY = 96
SPECIAL = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
FAMILIES = {
    "llama": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
    },
    "gpt_neox": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
}


def tiny(kind: str = "llama", seed: int = 0, **changes) -> PreTrainedModel:
    """A small model of a family, every parameter perturbed (norms away from 1, biases away from 0)."""
    values = {"vocab_size": VOCABULARY, **SPECIAL, **FAMILIES[kind], **changes}
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values), dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def write_tokenizer(folder: Path, size: int = 90, swapped: bool = False) -> None:
    """A word-level tokenizer `w0 w1 ...` with the leading spaces of SentencePiece."""
    words = ["<pad>", "<s>", "</s>", "<unk>"] + [f"▁w{i}" for i in range(size - 4)]
    if swapped:
        words[5], words[6] = words[6], words[5]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)


def write_run(folder: Path, kind: str = "llama", steps: tuple[int, ...] = (1, 2, 3), **changes) -> Path:
    """A Trainer run: checkpoint-<step>/ folders of different weights, the tokenizer in the run's folder."""
    for step in steps:
        tiny(kind, seed=step, **changes).save_pretrained(folder / f"checkpoint-{step}")
    write_tokenizer(folder)
    return folder

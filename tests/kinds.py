"""Checkpoints as other tools leave them: a GGUF file, a pickle, a model with code of its own, a run of the Trainer."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from tokenizers import pre_tokenizers
from transformers import Trainer, TrainingArguments

from tests.models import tiny, write_tokenizer

CODE = '''"""A Llama whose logits are scaled by a number in its config."""

from transformers import LlamaConfig, LlamaForCausalLM


class ScaledConfig(LlamaConfig):
    model_type = "scaled_llama"

    def __init__(self, logit_scale=0.25, **kwargs):
        self.logit_scale = logit_scale
        super().__init__(**kwargs)


class ScaledForCausalLM(LlamaForCausalLM):
    config_class = ScaledConfig

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * self.config.logit_scale
        return output
'''


def write_coded(folder: Path, seed: int = 1) -> None:
    """A checkpoint whose config asks for the code beside it."""
    tiny(seed=seed).save_pretrained(folder)
    write_tokenizer(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "scaled_llama", "logit_scale": 0.25, "architectures": ["ScaledForCausalLM"]}
    config["auto_map"] = {"AutoConfig": "scaled.ScaledConfig", "AutoModelForCausalLM": "scaled.ScaledForCausalLM"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "scaled.py").write_text(CODE)


def write_pickled(folder: Path, seed: int = 1, legacy: bool = False) -> None:
    """A checkpoint with a pickle for weights."""
    model = tiny(seed=seed)
    model.config.save_pretrained(folder)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    write_tokenizer(folder)


def write_gguf(file: Path) -> None:
    """A small Llama, matrices as Q8_0, with a byte-level BPE tokenizer."""
    layers, hidden, inner, heads = 2, 32, 64, 4
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["Ġ w", "t h", "th e", "Ġ the"]
    tokens = ["<s>", "</s>", *alphabet, *(merge.replace(" ", "") for merge in merges)]
    writer = GGUFWriter(file, "llama")
    writer.add_name("tiny")
    writer.add_block_count(layers)
    writer.add_context_length(64)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(heads)
    writer.add_rope_dimension_count(hidden // heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_merges(merges)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(0)
    draw = np.random.default_rng(0)

    def add(name: str, *shape: int) -> None:
        array = (0.3 * draw.standard_normal(shape)).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(name, 1 + array)
            return
        kind = GGMLQuantizationType.Q8_0
        writer.add_tensor(name, quants.quantize(array, kind), raw_dtype=kind)

    add("token_embd.weight", len(tokens), hidden)
    add("output_norm.weight", hidden)
    add("output.weight", len(tokens), hidden)
    for layer in range(layers):
        for name in ("attn_norm", "ffn_norm"):
            add(f"blk.{layer}.{name}.weight", hidden)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"blk.{layer}.{name}.weight", hidden, hidden)
        add(f"blk.{layer}.ffn_gate.weight", inner, hidden)
        add(f"blk.{layer}.ffn_up.weight", inner, hidden)
        add(f"blk.{layer}.ffn_down.weight", hidden, inner)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def train(folder: Path) -> None:
    """A run of transformers' Trainer: four steps, every second kept, the tokenizer in the run's folder."""
    rows = [{"input_ids": ids, "labels": ids} for ids in torch.randint(4, 90, (8, 12)).tolist()]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=4,
        save_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=0,
    )
    Trainer(tiny().train(), arguments, train_dataset=rows).train()
    write_tokenizer(folder)


if __name__ == "__main__":
    train(Path(sys.argv[1]))

"""Blocks are found by what runs, not by names; what has no lens is refused by name."""

import resource

import pytest
import torch
from torch import nn
from transformers import AutoConfig

from stages.anatomy import find as finding
from stages.anatomy.find import find
from stages.anatomy.halves import Backbone, Lens
from stages.anatomy.model import build, configure
from stages.anatomy.stored import parameters
from stages.command import Refusal
from tests.models import FAMILIES, VOCABULARY, tiny


def config(kind, **changes):
    return {"model_type": kind, "vocab_size": VOCABULARY, **FAMILIES.get(kind, {}), **changes}


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("llama", "2 calls of model.layers, stream [B,T,32], then norm: LlamaRMSNorm > lm_head: Linear"),
        ("gpt_neox", "3 calls of gpt_neox.layers, stream [B,T,32], then final_layer_norm: LayerNorm > lm_head: Linear"),
        ("gpt2", "2 calls of transformer.h, stream [B,T,32], then ln_f: LayerNorm > lm_head: Linear"),
    ],
)
def test_what_is_found_in_plain_words(kind, words):
    assert find(build(config(kind))).describe() == words


def test_a_model_without_weights_takes_no_memory():
    find(build(config("llama")))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    network = build(config("llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=12))
    assert sum(parameter.nbytes for parameter in network.parameters()) > 2.5e9
    find(network)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 0.6e9


@torch.no_grad()
@pytest.mark.parametrize("kind", FAMILIES)
def test_the_lens_reads_rows_one_by_one_whatever_the_ids(kind):
    model = tiny(kind)
    lens = Lens(model, find(build(config(kind))))
    rows = torch.randn(7, 32)
    whole = lens(rows)["logits"]
    for index, row in enumerate(rows):
        assert torch.allclose(lens(row[None])["logits"][0], whole[index], atol=1e-5)
    assert all("forward" not in vars(block) for block in lens.anatomy.blocks(model)), "the model is left as it was"


@torch.no_grad()
def test_a_block_that_is_called_twice_is_two_layers():
    model = tiny("llama")
    model.model.layers[1] = model.model.layers[0]
    network = build(config("llama"))
    network.model.layers[1] = network.model.layers[0]
    anatomy = find(network)
    assert len(anatomy.calls) == 2
    ids = torch.randint(0, VOCABULARY, (1, 5))
    hidden, logits = Backbone(model, anatomy).run(ids, torch.ones_like(ids))
    assert hidden.shape == (3, 1, 5, 32)
    assert torch.allclose(Lens(model, anatomy)(hidden[-1, 0])["logits"], logits[0], atol=1e-5)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "nonesuch"}, "model type 'nonesuch' is not one that transformers"),
        ({}, "model type None is not one"),
        ({"model_type": "t5"}, "'t5' has no causal language model"),
        ({"model_type": "llama", "auto_map": {"AutoConfig": "x.X"}}, "remote code"),
        ({"model_type": "llama", "quantization_config": {}}, "dequantise"),
        ({"model_type": "llama", "num_attention_heads": "many"}, "config.json is not one of llama"),
    ],
)
def test_a_config_that_can_not_be_built_is_refused_in_one_line(values, words):
    with pytest.raises(Refusal) as caught:
        configure(values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_lists_that_look_alike_are_refused():
    network = build(config("llama"))
    network.model.twin = nn.ModuleList([nn.Linear(32, 32) for _ in range(9)])
    original = network.model.forward

    def forward(*args, **kwargs):
        out = original(*args, **kwargs)
        for block in network.model.twin:
            block(out.last_hidden_state)
        return out

    network.model.forward = forward
    with pytest.raises(Refusal, match="look alike .model.layers, model.twin.: name one as `blocks`"):
        find(network)
    assert find(network, "model.layers").path == "model.layers"
    with pytest.raises(Refusal, match="model.norm is not a list of blocks .* .found: model.layers, model.twin."):
        find(network, "model.norm")


def test_a_model_without_a_stream_is_refused(monkeypatch):
    network = build(config("llama"))
    monkeypatch.setattr(finding, "_record", lambda model: [])
    with pytest.raises(Refusal, match="no list of blocks"):
        find(network)


def test_the_names_that_files_use_are_known():
    found = parameters(build(config("gpt_neox")))
    assert "embed_out.weight" in found["lm_head.weight"]["names"]
    found = parameters(build(config("gpt2")))
    # The first GPT-2 checkpoints have no `transformer.` in front.
    assert "h.0.attn.c_attn.weight" in found["transformer.h.0.attn.c_attn.weight"]["names"]
    tied = found["transformer.wte.weight"]
    assert {"wte.weight", "lm_head.weight"} <= set(tied["names"])
    assert AutoConfig.for_model("gpt2").tie_word_embeddings

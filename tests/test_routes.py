"""A graph is kept only if it is proven; what stands in for a model's own code is the same formula."""

import importlib

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper

from stages.anatomy.find import find
from stages.anatomy.halves import Backbone, Lens
from stages.anatomy.model import build, build_random
from stages.command import Refusal
from stages.graph import lengths, routes
from stages.graph.mend import clamp_topk, name_inferred_axes
from stages.graph.patches import PATCHES, patched
from stages.graph.trace import trace_backbone, trace_lens
from stages.measure.ladder import first_right
from stages.measure.proof import Proof, prove_lens_formula
from tests.models import FAMILIES, VOCABULARY
from tests.zoo.tiny import tiny_config, tiny_model

LLAMA = {"model_type": "llama", "vocab_size": VOCABULARY, **FAMILIES["llama"]}


@pytest.fixture(scope="module")
def llama():
    network = build(LLAMA)
    return network, find(network), build_random(LLAMA)


def turned(op, into, folder=routes.exporters):
    """A route whose graphs have one operator in place of another."""

    def route(*args):
        graph = folder(*args)
        for node in graph.graph:
            if node.op_type == op:
                node.op_type = into
        return graph

    return route


def silent(*args):
    raise ValueError("first line\nsecond line") from RuntimeError("the cause, in a line\nand more")


def test_a_route_that_fails_and_one_that_is_wrong_are_passed_over(llama, monkeypatch):
    network, anatomy, weighty = llama
    ways = {"fails": silent, "wrong": turned("Cos", "Sin"), "right": routes.exporters}
    monkeypatch.setattr(routes, "ROUTES", ways)
    monkeypatch.setattr("stages.graph.trace.ROUTES", ways)
    kept = first_right(network, anatomy, trace_backbone, Proof(weighty, anatomy).backbone)
    assert kept.route == kept.weights["route"] == "right"
    assert kept.difference < 1e-6
    assert kept.refused["fails"] == "could not be traced (ValueError: the cause, in a line)"
    assert "differs from torch by rel" in kept.refused["wrong"]
    assert "at (1, 2), layer" in kept.refused["wrong"], "a cosine is wrong from the second token on"


def test_no_route_is_a_refusal_with_the_reason_of_each(llama, monkeypatch):
    network, anatomy, weighty = llama
    ways = {"fails": silent, "wrong": turned("Mul", "Add")}
    monkeypatch.setattr(routes, "ROUTES", ways)
    monkeypatch.setattr("stages.graph.trace.ROUTES", ways)
    with pytest.raises(Refusal) as caught:
        first_right(network, anatomy, trace_lens, Proof(weighty, anatomy).lens)
    assert str(caught.value).startswith("llama: no route gives a right graph (fails: could not be traced")
    assert "; wrong: differs from torch by rel" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_models_without_experts_have_one_route_less(llama):
    assert list(routes.ROUTES) == ["transformers.exporters", "dynamo", "batched experts", "torchscript"]
    assert routes.routes_of(llama[0]) == ["transformers.exporters", "dynamo", "torchscript"]
    assert routes.routes_of(build(tiny_config("mixtral").to_dict())) == list(routes.ROUTES)


@pytest.mark.parametrize("route", ["dynamo", "torchscript"])
def test_every_route_gives_the_same_halves(llama, route, monkeypatch):
    network, anatomy, weighty = llama
    proof = Proof(weighty, anatomy)
    monkeypatch.setattr("stages.measure.ladder.routes_of", lambda model: [route])
    assert first_right(network, anatomy, trace_backbone, proof.backbone).difference < 1e-6
    assert first_right(network, anatomy, trace_lens, proof.lens).difference < 1e-6


def test_a_head_that_reads_its_neighbours_has_no_lens(llama):
    model, anatomy = build_random(LLAMA), llama[1]
    prove_lens_formula(model, anatomy)
    inner = model.lm_head.forward
    model.lm_head.forward = lambda rows: inner(rows + rows.roll(1, 0).detach())
    with pytest.raises(
        Refusal, match=r"llama: lens\(hidden\[2\]\)|row by row .* its head reads more than one position"
    ):
        prove_lens_formula(model, anatomy)


def test_a_head_that_reads_the_tokens_has_no_lens(llama):
    model, anatomy = build_random(LLAMA), llama[1]
    seen = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, out: seen.append(out))
    inner = model.lm_head.forward
    model.lm_head.forward = lambda rows: inner(rows + seen[-1])
    with pytest.raises(Refusal, match="its head reads more than one position"):
        prove_lens_formula(model, anatomy)


def test_an_encoder_is_refused_by_what_it_does():
    config = tiny_config("bert").to_dict()
    with pytest.raises(Refusal, match="bert: an encoder, in which a token changes the streams before it"):
        prove_lens_formula(build_random(config), find(build(config)))


def test_a_stream_of_several_axes_is_one_wide_stream_and_back():
    config = tiny_config("deepseek_v4").to_dict()
    anatomy = find(build(config))
    assert anatomy.shape == ("B", "T", 4, 64)
    assert anatomy.hidden_size == 256
    stream = torch.randn(2, 5, 4, 64)
    assert torch.equal(anatomy.unflat(anatomy.flat(stream)), stream)
    model = build_random(config)
    ids = torch.randint(0, 96, (2, 5))
    hidden, logits = Backbone(model, anatomy).run(ids, torch.ones_like(ids))
    rows = Lens(model, anatomy)(hidden[-1].flatten(0, 1))["logits"]
    assert torch.allclose(rows.unflatten(0, (2, 5)), logits, atol=1e-5)


PATCHED = [
    "dbrx",
    "kimi_linear",
    "llama4_text",
    "longcat_flash",
    "mamba",
    "minimax",
    "olmo_hybrid",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
]


@torch.no_grad()
@pytest.mark.parametrize("kind", PATCHED)
def test_what_stands_in_for_a_part_is_the_same_formula(kind):
    model = tiny_model(kind)
    ids = torch.randint(0, 96, (2, 70), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :9] = 0
    live = mask.bool()
    expected = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[live]
    with patched():
        found = model(input_ids=ids, attention_mask=mask, use_cache=False).logits[live]
    assert (found - expected).abs().max() <= 2e-5 * expected.abs().max()


def test_every_patch_is_compared_with_what_it_replaces():
    modules = {name.partition(".")[0] for patch in PATCHES for name in patch.modules}
    assert {"llama4" if kind == "llama4_text" else kind for kind in PATCHED} <= modules
    for patch in PATCHES:
        assert any(name.partition(".")[0] in ("llama4", *PATCHED) for name in patch.modules), patch.name


def test_every_patch_replaces_something_that_is_there_and_says_why():
    for patch in PATCHES:
        assert len(patch.why) > 20
        assert "can go when" in patch.why
        for name in patch.modules:
            holder = importlib.import_module(f"transformers.models.{name}")
            for part in patch.name.split("."):
                holder = getattr(holder, part)


def test_nothing_stays_patched():
    module = importlib.import_module("transformers.models.mamba.modeling_mamba")
    before = module.mamba_selective_scan
    with patched():
        assert module.mamba_selective_scan is not before
    assert module.mamba_selective_scan is before


def test_lengths_reach_beyond_windows_and_chunks_and_no_further_than_positions():
    config = tiny_config("mistral")
    config.sliding_window, config.max_position_embeddings = 500, 4096
    assert lengths.beyond(config) > 500
    config.sliding_window = 5000
    assert lengths.beyond(config) == lengths.LONGEST
    config.max_position_embeddings = 60
    assert lengths.traced(config) == lengths.beyond(config) == 60
    config = tiny_config("mamba2")
    config.chunk_size = 256
    assert lengths.traced(config) > 512
    assert lengths.traced(config) % 256


def run(model, **feeds):
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def model_of(nodes, shape, out, **constants):
    values = [helper.make_tensor(name, TensorProto.INT64, [len(v)], v) for name, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        values,
    )
    return ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10))


def test_a_short_sequence_has_fewer_best():
    model = model_of([helper.make_node("TopK", ["x", "k"], ["y", "i"])], ["b", "t"], ["b", "n"], k=[8])
    with pytest.raises(Exception, match="k argument"):
        run(model, x=np.ones((2, 3), np.float32))
    clamp_topk(model)
    assert run(model, x=np.ones((2, 3), np.float32))[0].shape == (2, 3)
    assert run(model, x=np.ones((2, 20), np.float32))[0].shape == (2, 8)


def test_no_window_at_all_still_has_a_width():
    nodes = [
        helper.make_node("Shape", ["x"], ["lead"], start=0, end=1),
        helper.make_node("Shape", ["x"], ["tokens"], start=1, end=2),
        helper.make_node("Div", ["tokens", "four"], ["windows"]),
        helper.make_node("Concat", ["lead", "windows", "four", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    model = model_of(nodes, ["b", "t", 16], ["b", "w", 4, 16], four=[4], rest=[-1])
    with pytest.raises(Exception, match="reshape"):
        run(model, x=np.ones((2, 0, 16), np.float32))
    name_inferred_axes(model)
    assert run(model, x=np.ones((2, 0, 16), np.float32))[0].shape == (2, 0, 4, 16)

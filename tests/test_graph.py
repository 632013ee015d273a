"""Tracing without weights and filling: every layer, every shape, both paddings, the same bytes anywhere."""

import subprocess
import sys
from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from stages.anatomy.find import find
from stages.anatomy.halves import Backbone, Lens
from stages.anatomy.model import build
from stages.anatomy.stored import canonical_names
from stages.command import Refusal
from stages.files import read_json, write_json
from stages.graph import fill
from stages.graph.session import check_loads, open_f32, open_session
from stages.graph.split import split
from stages.graph.trace import trace_backbone, trace_lens
from stages.measure.compare import relative
from stages.measure.pair import Pair, batches
from stages.measure.reference import float32_values
from tests.conftest import REPOSITORY
from tests.models import FAMILIES, VOCABULARY, tiny

FIRST = "transformers.exporters"


class InMemory:
    """Weights for `fill_f16` from arrays."""

    def __init__(self, values):
        self.values = values

    def fact(self, parameter):
        return {"max_abs": float(np.abs(self.values[parameter].astype(np.float64)).max())}

    def read(self, parameter):
        return self.values[parameter]


@pytest.fixture(scope="module", params=FAMILIES)
def traced(request, tmp_path_factory):
    """A family: its folder of traced halves, a real model of it, its anatomy."""
    folder = tmp_path_factory.mktemp(request.param)
    model = tiny(request.param, seed=3)
    network = build({**model.config.to_dict(), "model_type": request.param})
    anatomy = find(network)
    for half, trace in (("backbone", trace_backbone), ("lens", trace_lens)):
        graph, weights = split(trace(network, anatomy, FIRST), canonical_names(network))
        (folder / half).mkdir()
        (folder / half / "graph.onnx").write_bytes(graph)
        write_json(folder / half / "weights.json", weights)
    return folder, model, anatomy


def fp32_pair(folder, values):
    return Pair(open_f32(folder / "backbone", values), open_f32(folder / "lens", values))


def f16_pair(folder, weights):
    sessions = []
    for half in ("backbone", "lens"):
        fill.fill_f16(folder / half, weights, folder / f"{half}.f16.onnx")
        check_loads(folder / f"{half}.f16.onnx")
        sessions.append(open_session(folder / f"{half}.f16.onnx"))
    return Pair(*sessions)


@torch.no_grad()
def test_every_layer_in_every_shape_and_padding(traced):
    folder, model, anatomy = traced
    values = float32_values(model)
    fp32, f16 = fp32_pair(folder, values), f16_pair(folder, InMemory(values))
    for shape, ids, mask in batches(VOCABULARY, 64):
        live = mask.bool()
        hidden, logits = Backbone(model, anatomy).run(ids, mask)
        for pair, bound in ((fp32, 1e-5), (f16, 5e-3)):
            other = pair.hidden(ids, mask)
            assert torch.isfinite(other).all(), shape
            for layer in range(len(anatomy.calls) + 1):
                assert relative(hidden[layer][live], other[layer][live]) <= bound, (shape, layer)
                lens = Lens(model, anatomy)(hidden[layer][live])["logits"]
                assert relative(lens, pair.logits(hidden[layer][live])) <= bound, (shape, layer)
        assert relative(logits[live], lens) <= 1e-6, "lens(hidden[L]) is the model's output"


@torch.no_grad()
def test_the_stream_is_raw_from_before_the_first_block_to_before_the_final_norm(traced):
    _, model, anatomy = traced
    ids = torch.randint(0, VOCABULARY, (1, 5))
    hidden, _ = Backbone(model, anatomy).run(ids, torch.ones_like(ids))
    theirs = model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    for layer in range(len(anatomy.calls)):
        assert torch.equal(hidden[layer], theirs[layer])
    # transformers' last hidden state is behind the final norm, ours is not.
    assert relative(theirs[-1], hidden[-1]) > 0.1


@torch.no_grad()
def test_the_comparison_sees_a_stream_that_is_one_layer_off_and_a_norm_that_is_lost(traced):
    folder, model, anatomy = traced
    ids = torch.randint(0, VOCABULARY, (2, 9))
    mask = torch.ones_like(ids)
    hidden, logits = Backbone(model, anatomy).run(ids, mask)
    pair = fp32_pair(folder, float32_values(model))
    assert relative(hidden[1:], pair.hidden(ids, mask)[:-1]) > 0.01
    head = model.get_output_embeddings()
    assert relative(logits, head(hidden[-1])) > 0.01


def test_the_borders_and_the_pins(traced):
    folder, model, anatomy = traced
    weights = InMemory(float32_values(model))
    layers, width = len(anatomy.calls) + 1, anatomy.hidden_size
    expected = {
        "backbone": {
            "input_ids": ["batch", "tokens"],
            "attention_mask": ["batch", "tokens"],
            "hidden_states": [layers, "batch", "tokens", width],
        },
        "lens": {"hidden": ["rows", width], "logits": ["rows", VOCABULARY]},
    }
    for half, borders in expected.items():
        fill.fill_f16(folder / half, weights, folder / "x.onnx")
        content = (folder / "x.onnx").read_bytes()
        graph = onnx.load_from_string(content)
        onnx.checker.check_model(graph)
        assert graph.ir_version == 10
        assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 18)]
        assert not graph.metadata_props
        assert not any(node.metadata_props or node.doc_string or node.domain for node in graph.graph.node)
        found = {
            value.name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
            for value in [*graph.graph.input, *graph.graph.output]
        }
        assert found == borders


def test_a_tracing_holds_no_weight_and_names_each_slot_by_its_parameter(traced):
    folder, model, _ = traced
    canonical = canonical_names(model)
    used = set()
    for half in ("backbone", "lens"):
        described = read_json(folder / half / "weights.json")
        slots = described["weights"]
        graph = onnx.load(folder / half / "graph.onnx", load_external_data=False).graph
        for tensor in graph.initializer:
            external = tensor.data_location == TensorProto.EXTERNAL
            assert external == (tensor.name in slots)
            assert external or tensor.name in described["constants"]
            assert external or numpy_helper.to_array(tensor).nbytes < 1024
        for slot in slots.values():
            shape = list(model.state_dict()[slot["parameter"]].shape)
            assert slot["shape"] == (shape[::-1] if slot["transpose"] else shape)
        used |= {slot["parameter"] for slot in slots.values()}
    assert used == set(canonical.values()), "each parameter has its place in one half or the other"


def test_a_weight_that_is_no_parameter_is_an_error_that_names_it():
    network = build({**tiny("llama").config.to_dict(), "model_type": "llama"})
    graph = trace_lens(network, find(network), FIRST)
    names = {name: value for name, value in canonical_names(network).items() if name != "model.norm.weight"}
    with pytest.raises(Refusal, match=r"no parameter of the model: base\.model\.norm\.weight"):
        split(graph, names)


TRACE = """
import sys
from stages.anatomy.find import find
from stages.anatomy.model import build
from stages.anatomy.stored import canonical_names
from stages.graph.split import split
from stages.graph.trace import trace_backbone
network = build({"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 96})
graph = trace_backbone(network, find(network), "transformers.exporters")
sys.stdout.buffer.write(split(graph, canonical_names(network))[0])
"""


def test_a_trace_is_the_same_bytes_in_any_folder_and_process(tmp_path):
    results = []
    for seed in ("1", "2"):
        place = tmp_path / f"folder {seed}"
        place.mkdir()
        environment = {"PYTHONPATH": str(REPOSITORY), "PYTHONHASHSEED": seed, "PATH": "", "HOME": str(place)}
        done = subprocess.run(
            [sys.executable, "-c", TRACE], cwd=place, env=environment, capture_output=True, check=True
        )
        results.append(done.stdout)
    assert results[0]
    assert results[0] == results[1]
    assert str(tmp_path).encode() not in results[0]
    assert str(REPOSITORY).encode() not in results[0]


# A graph by hand: a table that is only looked up, one that is looked up and multiplied, a vector.
def hand_made(folder):
    shapes = {"table": [6, 4], "both": [6, 4], "vector": [4]}
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["looked"]),
        helper.make_node("Gather", ["both", "ids"], ["again"]),
        helper.make_node("Add", ["looked", "again"], ["sum"]),
        helper.make_node("Mul", ["sum", "vector"], ["scaled"]),
        helper.make_node("Transpose", ["both"], ["flipped"], perm=[1, 0]),
        helper.make_node("MatMul", ["scaled", "flipped"], ["out"]),
    ]
    tensors = []
    for name, shape in shapes.items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="checkpoint")
        tensors.append(tensor)
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])]
    outputs = [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["n", 6])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    (folder / "graph.onnx").write_bytes(model.SerializeToString())
    slots = {
        name: {"parameter": name, "shape": shape, "transpose": False, "dtype": "float32"}
        for name, shape in shapes.items()
    }
    write_json(folder / "weights.json", {"weights": slots, "constants": []})


@pytest.fixture
def by_hand(tmp_path):
    hand_made(tmp_path)
    draw = np.random.default_rng(0)
    shapes = {"table": (6, 4), "both": (6, 4), "vector": (4,)}
    return tmp_path, {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def run(folder, values):
    report = fill.fill_f16(folder, InMemory(values), folder / "out.onnx")
    ids = np.array([0, 5, 2])
    found = open_session(folder / "out.onnx").run(None, {"ids": ids})[0]
    wide = {name: value.astype(np.float32) for name, value in values.items()}
    expected = (wide["table"][ids] + wide["both"][ids]) * wide["vector"] @ wide["both"].T
    return report, found, expected


def test_matrices_are_float16_vectors_float32_and_the_sum_is_float32(by_hand):
    folder, values = by_hand
    report, found, expected = run(folder, values)
    assert np.abs(found - expected).max() < 5e-3 * np.abs(expected).max()
    graph = onnx.load(folder / "out.onnx").graph
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert kinds == {"table": TensorProto.FLOAT16, "both": TensorProto.FLOAT16, "vector": TensorProto.FLOAT}
    assert Counter(node.op_type for node in graph.node)["Cast"] == 2
    for tensor in graph.initializer:
        cast = values[tensor.name].astype(numpy_helper.to_array(tensor).dtype)
        assert np.array_equal(numpy_helper.to_array(tensor), cast)
    # The looked-up table stays float16 in a session, the other is cast.
    assert report.bytes_after_cast == 2 * 24 + 4 * 24 + 4 * 4
    assert report.largest == ("both", 96)


def test_a_tensor_that_float16_cannot_hold_stays_float32_and_is_named(by_hand):
    folder, values = by_hand
    values["both"][1, 2] = 65520
    report, found, expected = run(folder, values)
    assert report.overflow == {"both": 65520.0}
    assert np.abs(found - expected).max() < 5e-3 * np.abs(expected).max()
    values["both"][1, 2] = 65519
    report, found, _ = run(folder, values)
    assert not report.overflow
    assert np.isfinite(found).all()


def test_underflow_is_counted(by_hand):
    folder, values = by_hand
    values["table"][0, :3] = [1e-9, -1e-9, 0]
    assert run(folder, values)[0].underflow == {"table": 2}


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_any_stored_dtype_is_cast_from_what_is_stored(by_hand, dtype):
    folder, values = by_hand
    _, found, expected = run(folder, {name: value.astype(dtype) for name, value in values.items()})
    assert np.abs(found - expected).max() < 5e-3 * np.abs(expected).max()


def test_a_graph_beyond_protobufs_limit_is_refused_before_anything_is_written(by_hand, monkeypatch):
    folder, values = by_hand
    monkeypatch.setattr(fill, "MESSAGE_LIMIT", 100)
    with pytest.raises(Refusal, match="more than the 2.1 GB"):
        fill.fill_f16(folder, InMemory(values), folder / "big.onnx")
    assert not (folder / "big.onnx").exists()

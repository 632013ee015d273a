"""Filling a graph with one checkpoint's weights: read, transpose, cast, write, one tensor at a time.

No torch, no transformers. Memory holds the largest tensor, not the file.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from stages.command import Refusal
from stages.files import read_json
from stages.graph.limits import MESSAGE_LIMIT
from stages.graph.nodes import all_nodes

# The largest finite float16 is 65504; from 65520 on a value rounds to infinity.
F16_OVERFLOW = 65520.0
# Field numbers of onnx.proto: ModelProto.graph, GraphProto.initializer, TensorProto.raw_data.
GRAPH, INITIALIZER, RAW_DATA = 7, 5, 9
LENGTH_DELIMITED = 2


class Weights(Protocol):
    """What a checkpoint must answer: see stages/sources/record.py."""

    def fact(self, parameter: str) -> dict:
        """`max_abs` of a parameter's tensor, among other facts."""

    def read(self, parameter: str) -> np.ndarray:
        """A parameter's tensor as it is stored."""


@dataclass
class Filled:
    """What filling did.

    Attributes:
        overflow: matrices kept in float32, since float16 can't hold their largest value, with that value.
        underflow: how many non-zero elements became zero, by matrix, where any did.
        largest: the name and the bytes of the largest weight as a session holds it.
        bytes_after_cast: all weights as a session holds them: float32 behind their casts, float16 if looked up.
    """

    overflow: dict[str, float] = field(default_factory=dict)
    underflow: dict[str, int] = field(default_factory=dict)
    largest: tuple[str, int] = ("", 0)
    bytes_after_cast: int = 0

    def as_json(self) -> dict:
        """For the report."""
        return {
            "overflow_kept_fp32": self.overflow,
            "underflow_to_zero": self.underflow,
            "largest_tensor": {"name": self.largest[0], "bytes_after_cast": self.largest[1]},
            "bytes_after_cast": self.bytes_after_cast,
        }


def fill_f16(folder: Path, weights: Weights, target: Path) -> Filled:
    """Write a traced half with a checkpoint's weights: matrices as float16 behind a Cast, the rest as is.

    Args:
        folder: graph.onnx and weights.json, as `split` makes them.
        weights: the checkpoint.
        target: the file to write.

    Raises:
        Refusal: a weight is not what was fetched, or the file would pass protobuf's limit of 2 GB.
    """
    graph = onnx.load(folder / "graph.onnx", load_external_data=False)
    slots = read_json(folder / "weights.json")["weights"]
    filled, half = Filled(), set()
    for name, slot in slots.items():
        top = weights.fact(slot["parameter"])["max_abs"]
        if len(slot["shape"]) < 2 or slot["dtype"] != "float32":
            continue
        if top >= F16_OVERFLOW:
            filled.overflow[name] = top
        else:
            half.add(name)
    looked_up = _cast(graph, half)
    _account(filled, slots, looked_up)
    _write(graph, slots, half, target, lambda name: _value(weights, slots[name], name in half, name, filled))
    return filled


def _account(filled: Filled, slots: dict[str, dict], looked_up: set[str]) -> None:
    sizes = {
        name: (2 if name in looked_up else np.dtype(slot["dtype"]).itemsize) * math.prod(slot["shape"])
        for name, slot in slots.items()
    }
    filled.largest = max(sizes.items(), key=lambda item: item[1])
    filled.bytes_after_cast = sum(sizes.values())


def _value(weights: Weights, slot: dict, as_half: bool, name: str, filled: Filled) -> np.ndarray:
    array = weights.read(slot["parameter"])
    if slot["transpose"]:
        array = array.T
    if not as_half:
        return np.ascontiguousarray(array, dtype=slot["dtype"])
    small = np.ascontiguousarray(array.astype(np.float16))
    lost = int(np.count_nonzero(array)) - int(np.count_nonzero(small))
    if lost:
        filled.underflow[name] = lost
    return small


def _cast(graph: ModelProto, half: set[str]) -> set[str]:
    """Put a Cast to float32 behind every float16 weight.

    A table that is only looked up is cast after the lookup, row by row: the whole table stays in float16.
    The names of such tables are returned.
    """
    users: dict[str, list[NodeProto]] = {name: [] for name in half}
    top = {id(node) for node in graph.graph.node}
    for node in all_nodes(graph.graph):
        for name in node.input:
            if name in half:
                users[name].append(node)
    before, after, looked_up = [], {}, set()
    for name in sorted(half):
        if all(node.op_type == "Gather" and node.input[0] == name and id(node) in top for node in users[name]):
            looked_up.add(name)
            for node in users[name]:
                result = node.output[0]
                node.output[0] = f"{result}.f16"
                after[id(node)] = helper.make_node(
                    "Cast", [node.output[0]], [result], name=f"{result}.cast", to=TensorProto.FLOAT
                )
            continue
        wide = f"{name}.f32"
        before.append(helper.make_node("Cast", [name], [wide], name=f"{name}.cast", to=TensorProto.FLOAT))
        for node in users[name]:
            for index, given in enumerate(node.input):
                if given == name:
                    node.input[index] = wide
    ordered = list(before)
    for node in graph.graph.node:
        ordered += [node, after[id(node)]] if id(node) in after else [node]
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in ordered]
    del graph.graph.node[:]
    graph.graph.node.extend(nodes)
    return looked_up


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, length: int) -> bytes:
    """The head of a length-delimited protobuf field (protobuf.dev, "Encoding")."""
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(length)


def _write(
    graph: ModelProto, slots: dict[str, dict], half: set[str], target: Path, value: Callable[[str], np.ndarray]
) -> None:
    """Serialise a model whose weights come one by one.

    A protobuf message is the concatenation of its fields, in any order, so the weights are appended to the graph
    message as they are read; only their lengths must be known before.
    """
    small = [tensor for tensor in graph.graph.initializer if tensor.name not in slots]
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(small)
    body = graph.graph.SerializeToString(deterministic=True)
    graph.ClearField("graph")
    heads = {}
    for name, slot in sorted(slots.items()):
        dtype = np.dtype("float16" if name in half else slot["dtype"])
        kind = helper.np_dtype_to_tensor_dtype(dtype)
        tensor = TensorProto(name=name, data_type=kind, dims=slot["shape"]).SerializeToString(deterministic=True)
        raw = dtype.itemsize * math.prod(slot["shape"])
        tensor += _field(RAW_DATA, raw)
        heads[name] = _field(INITIALIZER, len(tensor) + raw) + tensor, raw
    total = len(body) + sum(len(head) + raw for head, raw in heads.values())
    if total > MESSAGE_LIMIT:
        raise Refusal(
            f"{target.name} would have {total / 1e9:.1f} GB, more than the 2.1 GB that one ONNX file can hold"
        )
    with target.open("wb") as file:
        file.write(graph.SerializeToString(deterministic=True) + _field(GRAPH, total) + body)
        for name, (head, raw) in heads.items():
            file.write(head)
            _write_raw(file, value(name), raw)


def _write_raw(file: BinaryIO, array: np.ndarray, expected: int) -> None:
    assert array.nbytes == expected, "a tensor's size was announced wrongly"
    file.write(array.reshape(-1).view(np.uint8).data)

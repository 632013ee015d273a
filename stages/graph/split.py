"""Splitting a traced graph from its weights: the graph, and which parameter goes into which initializer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from onnx import ModelProto, TensorProto, helper

from stages.command import Refusal
from stages.graph.nodes import all_nodes
from stages.graph.trace import quiet

PREFIX = "base."


def split(graph: ir.Model, canonical: dict[str, str]) -> tuple[bytes, dict]:
    """A traced graph as a file without weights, and its map.

    Args:
        graph: from `trace`; the initializers of parameters have no values.
        canonical: for every name in the model's state dict the name of its parameter (tied weights share one).

    Returns:
        The bytes of the graph, in which each weight is a reference to external data that does not exist, and
        `{"weights": {initializer: {"parameter", "shape", "transpose", "dtype"}}, "constants": [names]}`; `shape` is
        that of the initializer, which holds the parameter transposed where `transpose` is true; `dtype` is float32,
        or that of a table of whole numbers.

    Raises:
        Refusal: a float initializer that is neither a parameter nor a constant.
    """
    weights = {}
    for name, value in list(graph.graph.initializers.items()):
        parameter = canonical.get(name.removeprefix(PREFIX))
        if parameter is None or value.const_value is not None:
            continue
        transposed = _absorb_transpose(graph, value)
        shape = [int(d) for d in value.shape]
        weights[name] = {"parameter": parameter, "shape": shape, "transpose": transposed, "dtype": _dtype(value)}
    orphans = [n for n, v in graph.graph.initializers.items() if n not in weights and v.const_value is None]
    if orphans:
        raise Refusal(f"the graph has a weight that is no parameter of the model: {', '.join(sorted(orphans))}")
    with quiet():
        proto = ir.to_proto(graph)
    proto.graph.ClearField("value_info")
    names = {name: name.removeprefix(PREFIX) for name in weights}
    _rename(proto, names)
    described = {names[name]: weights[name] for name in weights}
    _refer(proto, described)
    constants = sorted(t.name for t in proto.graph.initializer if t.name not in described)
    return proto.SerializeToString(deterministic=True), {"weights": described, "constants": constants}


def _dtype(value: ir.Value) -> str:
    return str(value.dtype.numpy())


def _absorb_transpose(graph: ir.Model, weight: ir.Value) -> bool:
    """Store a matrix transposed if it is used only so: no node at run time, no copy when a session loads it."""
    users = [use.node for use in weight.uses()]
    flips = all(
        node.op_type == "Transpose"
        and list(node.attributes["perm"].as_ints()) == [1, 0]
        and not _is_output(graph, node)
        for node in users
    )
    if not users or not flips or len(weight.shape) != 2:
        return False
    for node in users:
        node.outputs[0].replace_all_uses_with(weight)
        graph.graph.remove(node, safe=True)
    weight.shape = ir.Shape(list(weight.shape)[::-1])
    return True


def _is_output(graph: ir.Model, node: ir.Node) -> bool:
    return any(output is value for output in node.outputs for value in graph.graph.outputs)


def _rename(proto: ModelProto, names: dict[str, str]) -> None:
    for tensor in proto.graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    for node in all_nodes(proto.graph):
        for index, name in enumerate(node.input):
            node.input[index] = names.get(name, name)


def _refer(proto: ModelProto, weights: dict[str, dict]) -> None:
    """Declare each weight: external, to be filled in. Sorted, so that the same graph is the same bytes."""
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in weights]
    declared = []
    for name, weight in weights.items():
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(weight["dtype"]))
        tensor = TensorProto(name=name, data_type=kind, dims=weight["shape"])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="checkpoint")
        declared.append(tensor)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(sorted([*kept, *declared], key=lambda tensor: tensor.name))

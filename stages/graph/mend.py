"""What is right for the length that was traced, and wrong for shorter ones."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir


def clamp_topk(graph: ir.Model) -> None:
    """Never ask for more of the largest along an axis than it has: `min(k, tokens)` is traced as `k`."""
    for node in list(graph.graph.all_nodes()):
        if node.op_type != "TopK" or node.inputs[1].const_value is None:
            continue
        values, most = node.inputs
        axis = node.attributes.get_int("axis", -1)
        if values.shape is not None and isinstance(values.shape[axis], int):
            continue
        tape = ir.tape.Tape()
        place = ir.tensor(np.array([axis], dtype=np.int64))
        length = tape.op("Gather", [tape.op("Shape", [values]), tape.op("Constant", [], {"value": place})])
        clamped = tape.op("Min", [most, length])
        node.graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, clamped)


def name_inferred_axes(graph: ir.Model) -> None:
    """Say how wide an axis is in place of -1 in a Reshape: of nothing, it can't be inferred."""
    for node in list(graph.graph.all_nodes()):
        target = node.outputs[0].shape if node.op_type == "Reshape" else None
        made = node.inputs[1].producer() if target is not None else None
        if made is None or made.op_type != "Concat":
            continue
        place = next((place for place, part in enumerate(made.inputs) if _is_inferred(part)), None)
        width = _width(target, place, len(made.inputs))
        if not isinstance(width, int):
            continue
        tape = ir.tape.Tape()
        said = tape.op("Constant", [], {"value": ir.tensor(np.array([width], dtype=np.int64))})
        parts = [said if index == place else part for index, part in enumerate(made.inputs)]
        shape = tape.op("Concat", parts, {"axis": 0})
        node.graph.insert_before(node, tape.nodes)
        node.replace_input_with(1, shape)


def _width(target: ir.Shape, place: int | None, parts: int) -> object:
    """The size of the axis that one part of a shape stands for; the parts beside it may stand for several."""
    if place is None:
        return None
    if place == parts - 1:
        return target[-1]
    return target[place] if place == 0 or parts == len(target) else None


def _is_inferred(part: ir.Value) -> bool:
    return part.const_value is not None and part.const_value.numpy().reshape(-1).tolist() == [-1]

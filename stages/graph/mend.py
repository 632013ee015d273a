"""What a tracer takes for a constant although it depends on the length."""

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

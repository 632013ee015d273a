"""The ways from a torch module to a graph, in the order in which they are tried."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import onnx_ir as ir
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

from stages.graph.limits import OPSET

Inputs = dict[str, torch.Tensor]
Axes = dict[str, dict]
Route = Callable[[nn.Module, Inputs, Axes, str], ir.Model]


def exporters(module: nn.Module, inputs: Inputs, axes: Axes, output: str) -> ir.Model:
    """torch.export and dynamo through transformers.exporters, which mends what either gets wrong."""
    config = OnnxConfig(dynamic=True, dynamic_shapes=axes, opset_version=OPSET, optimize=False)
    return OnnxExporter().export(module, inputs, config).program


def dynamo(module: nn.Module, inputs: Inputs, axes: Axes, output: str) -> ir.Model:
    """torch.onnx's own dynamo exporter, without those mends."""
    program = torch.onnx.export(
        module,
        kwargs=inputs,
        dynamo=True,
        dynamic_shapes=axes,
        input_names=list(inputs),
        output_names=[output],
        opset_version=OPSET,
        optimize=False,
        verbose=False,
    )
    return program.model


@contextlib.contextmanager
def experts(model: PreTrainedModel, implementation: str) -> Iterator[None]:
    """Experts computed in another way for the time of a block."""
    before = model.get_experts_implementation()
    model.set_experts_implementation(implementation)
    try:
        yield
    finally:
        model.set_experts_implementation(before)


def batched_experts(module: nn.Module, inputs: Inputs, axes: Axes, output: str) -> ir.Model:
    """transformers.exporters, with each token's experts gathered: more memory, no sorting of tokens by expert."""
    with experts(module.base, "batched_mm"):
        return exporters(module, inputs, axes, output)


def torchscript(module: nn.Module, inputs: Inputs, axes: Axes, output: str) -> ir.Model:
    """torch.jit.trace and torch.onnx's older converter; weights come as inputs, so that none is folded."""
    # One forward is run to trace it: its inputs decide which axes a Python `if` sees.
    names = {name: {axis: f"{name}_{axis}" for axis in dims} for name, dims in axes.items()}
    file = io.BytesIO()
    torch.onnx.export(
        module,
        tuple(inputs.values()),
        file,
        dynamo=False,
        dynamic_axes=names,
        input_names=list(inputs),
        output_names=[output],
        opset_version=OPSET,
        do_constant_folding=False,
        export_params=False,
        keep_initializers_as_inputs=True,
    )
    graph = ir.from_proto(onnx.load_from_string(file.getvalue()))
    for value in [value for value in graph.graph.inputs if value.name not in inputs]:
        graph.graph.inputs.remove(value)
        # An initializer must have a value; one number stands for all, until the weights are taken out.
        value.const_value = ir.Tensor(np.broadcast_to(np.zeros(1, value.dtype.numpy()), value.shape.numpy()))
        graph.graph.register_initializer(value)
    return graph


ROUTES: dict[str, Route] = {
    "transformers.exporters": exporters,
    "dynamo": dynamo,
    "batched experts": batched_experts,
    "torchscript": torchscript,
}


def routes_of(model: PreTrainedModel) -> list[str]:
    """The routes that differ for a model: without experts there is no other way to compute them."""
    return [name for name, route in ROUTES.items() if route is not batched_experts or _has_experts(model)]


def _has_experts(model: PreTrainedModel) -> bool:
    return getattr(model, "_can_set_experts_implementation", bool)()

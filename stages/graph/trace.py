"""Tracing a half once per model, on one of the routes, then a few chosen passes."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator

import onnx_ir as ir
import torch
from onnx_ir.passes import common
from onnxscript import rewriter
from onnxscript.optimizer import _constant_folding as folding
from torch import nn
from torch.export import Dim

from stages.anatomy.find import BATCH, Anatomy
from stages.anatomy.halves import Backbone, Lens
from stages.command import Refusal
from stages.graph import lengths
from stages.graph.limits import IR_VERSION
from stages.graph.mend import clamp_topk, name_inferred_axes
from stages.graph.patches import patched
from stages.graph.routes import ROUTES

NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir", "transformers", "torch.fx")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporters warn of packages that are not needed here and print their progress."""
    levels = {name: logging.getLogger(name).level for name in NOISY}
    for name in NOISY:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _export(
    module: nn.Module, inputs: dict[str, torch.Tensor], axes: dict[str, dict], output: str, route: str
) -> ir.Model:
    try:
        with quiet(), patched(), torch.no_grad():
            return ROUTES[route](module.eval(), inputs, axes, output)
    except Exception as error:  # torch.export and the converters raise whatever the model's code meets
        raise Refusal(f"could not be traced ({type(error).__name__}: {_cause(error)})") from None


def _cause(error: BaseException) -> str:
    """The first cause of a chain of errors, in a line; the outer ones tell where in the exporter it came to light."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    return lines[0][:200]


def trace_backbone(model: nn.Module, anatomy: Anatomy, route: str) -> ir.Model:
    """The graph `input_ids, attention_mask` [B,T] → `hidden_states` [L+1,B,T,H]; parameters have no values.

    Raises:
        Refusal: the model's code can't be traced in this way.
    """
    # A batch of a size that models have none of: the tracer takes equal sizes for the same.
    ids = torch.ones((BATCH, lengths.traced(model.config)), dtype=torch.long)
    axes = {name: {0: Dim.DYNAMIC, 1: Dim.DYNAMIC} for name in ("input_ids", "attention_mask")}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    graph = _export(Backbone(model, anatomy), inputs, axes, "hidden_states", route)
    return _simplify(_named_axes(graph, ("batch", "tokens")), model)


def trace_lens(model: nn.Module, anatomy: Anatomy, route: str) -> ir.Model:
    """The graph `hidden` [N,H] → `logits` [N,V]; parameters have no values.

    Raises:
        Refusal: the model's code can't be traced in this way.
    """
    inputs = {"hidden": torch.zeros((6, anatomy.hidden_size))}
    graph = _export(Lens(model, anatomy), inputs, {"hidden": {0: Dim.DYNAMIC}}, "logits", route)
    return _simplify(_named_axes(graph, ("rows",)), model)


def _named_axes(graph: ir.Model, names: tuple[str, ...]) -> ir.Model:
    """Give the symbolic axes of the borders their names in place of the tracer's (`s72`)."""
    renamed = {}
    for value in graph.graph.inputs:
        for axis, name in enumerate(names):
            renamed[str(value.shape[axis])] = name
    for value in (*graph.graph.inputs, *graph.graph.outputs):
        value.shape = ir.Shape([d if isinstance(d, int) else renamed.get(str(d), str(d)) for d in value.shape])
    return graph


def _simplify(graph: ir.Model, model: nn.Module) -> ir.Model:
    """Take the weights out, then fold, merge and drop; the parameters keep their names.

    The whole of `optimize_ir` costs twice the trace; these passes, in this order, a few seconds.
    """
    saved = set(model.state_dict())
    for name, value in graph.graph.initializers.items():
        if name.removeprefix("base.") in saved:
            value.const_value = None
    limits = {
        "input_size_limit": folding.DEFAULT_CONSTANT_FOLD_INPUT_SIZE_LIMIT,
        "output_size_limit": folding.DEFAULT_CONSTANT_FOLD_OUTPUT_SIZE_LIMIT,
    }
    merge = [
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        common.DeduplicateInitializersPass(),
        common.CommonSubexpressionEliminationPass(),
        common.RemoveUnusedNodesPass(),
    ]
    passes = [
        common.RemoveUnusedNodesPass(),
        folding.FoldConstantsPass(shape_inference=True, **limits),
        common.IdentityEliminationPass(),
        *merge,
        rewriter.RewritePass(rewriter._DEFAULT_REWRITE_RULES),
        common.IdentityEliminationPass(),
        *merge,
        common.ClearMetadataAndDocStringPass(),
        common.RemoveUnusedOpsetsPass(),
        common.TopologicalSortPass(),
    ]
    with quiet():
        for step in passes:
            step(graph)
        clamp_topk(graph)
        name_inferred_axes(graph)
    graph.ir_version = IR_VERSION
    graph.producer_name = graph.producer_version = graph.doc_string = None
    graph.graph.name = "lensmill"
    return graph

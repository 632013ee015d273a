"""The first route that gives a right graph: traced, split from its weights, proven."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from transformers import PreTrainedModel

from stages.anatomy.find import Anatomy
from stages.anatomy.stored import canonical_names
from stages.command import Refusal
from stages.files import write_json
from stages.graph.routes import routes_of
from stages.graph.split import split

Trace = Callable[[PreTrainedModel, Anatomy, str], ir.Model]


@dataclass(frozen=True)
class Kept:
    """A graph that was proven.

    Attributes:
        graph: the file without weights.
        weights: which parameter fills which initializer, and the route.
        route: the way it was traced.
        difference: the worst against torch, max|a-b| / max|a|, float32.
        refused: what was wrong with the routes before, by route.
    """

    graph: bytes
    weights: dict
    route: str
    difference: float
    refused: dict[str, str]


def first_right(model: PreTrainedModel, anatomy: Anatomy, trace: Trace, prove: Callable[[Path], float]) -> Kept:
    """Try the routes in their order.

    Args:
        model: without weights.
        anatomy: of it.
        trace: gives a graph by a route.
        prove: measures a folder of graph.onnx and weights.json, and refuses what is not the model.

    Raises:
        Refusal: no route gives a right graph, with the reason for each.
    """
    refused: dict[str, str] = {}
    for route in routes_of(model):
        try:
            graph, weights = split(trace(model, anatomy, route), canonical_names(model))
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                (folder / "graph.onnx").write_bytes(graph)
                write_json(folder / "weights.json", weights)
                difference = prove(folder)
        except Refusal as refusal:
            refused[route] = str(refusal)
            continue
        return Kept(graph, weights | {"route": route}, route, difference, refused)
    reasons = "; ".join(f"{route}: {reason}" for route, reason in refused.items())
    raise Refusal(f"{model.config.model_type}: no route gives a right graph ({reasons})")

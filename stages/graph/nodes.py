"""Walking through a graph and the graphs inside it."""

from __future__ import annotations

from collections.abc import Iterator

from onnx import GraphProto, NodeProto


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the graphs inside them (the body of a Scan reads weights too)."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            for inner in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from all_nodes(inner)

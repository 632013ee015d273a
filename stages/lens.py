"""Trace a model's lens, once, from its config: `python -m stages.lens MODEL`.

In: models/MODEL/params.json (config). Out: data/graphs/MODEL/lens: graph.onnx without weights, weights.json.
"""

from __future__ import annotations

from stages.command import say, stage
from stages.files import graph_folder, json_text, new_folder
from stages.planning.plan import load_plan
from stages.sources.code import bring_code, traced_config


def main(model: str) -> None:
    """Trace and write."""
    from stages.anatomy.find import find
    from stages.anatomy.model import build, canonical_names
    from stages.graph.split import split
    from stages.graph.trace import trace_lens

    plan = load_plan(model)
    network = build(traced_config(plan), bring_code(plan))
    anatomy = find(network)
    graph, weights = split(trace_lens(network, anatomy), canonical_names(network))
    with new_folder(graph_folder(model, "lens")) as folder:
        (folder / "graph.onnx").write_bytes(graph)
        (folder / "weights.json").write_text(json_text(weights))
    say(f"lens {model}: {', '.join(weights['weights'])}; {len(graph) / 1e3:.1f} kB without them")


if __name__ == "__main__":
    stage("lens", main, __doc__, "model")

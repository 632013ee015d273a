"""Trace a model's backbone, once, from its config: `python -m stages.backbone MODEL`.

In: models/MODEL/params.json (config). Out: data/graphs/MODEL/backbone: graph.onnx without weights, weights.json
(which parameter fills which initializer), anatomy.json (what was found), parameters.json (what every checkpoint
must hold).
"""

from __future__ import annotations

from stages.command import say, stage
from stages.files import graph_folder, json_text, new_folder
from stages.planning.plan import load_plan
from stages.sources.code import bring_code, traced_config


def main(model: str) -> None:
    """Trace and write."""
    from stages.anatomy.find import find
    from stages.anatomy.model import build, canonical_names, parameters
    from stages.graph.split import split
    from stages.graph.trace import trace_backbone

    plan = load_plan(model)
    network = build(traced_config(plan), bring_code(plan))
    anatomy = find(network)
    say(f"backbone {model}: {anatomy.describe()}")
    graph, weights = split(trace_backbone(network, anatomy), canonical_names(network))
    with new_folder(graph_folder(model, "backbone")) as folder:
        (folder / "graph.onnx").write_bytes(graph)
        (folder / "weights.json").write_text(json_text(weights))
        (folder / "parameters.json").write_text(json_text(parameters(network)))
        (folder / "anatomy.json").write_text(
            json_text(
                {
                    "description": anatomy.describe(),
                    "num_layers": len(anatomy.calls),
                    "hidden_size": anatomy.hidden_size,
                    "vocab_size": network.config.get_text_config().vocab_size,
                    "tied": bool(network.config.get_text_config().tie_word_embeddings),
                }
            )
        )
    say(f"backbone {model}: {len(weights['weights'])} weights, {len(graph) / 1e3:.0f} kB without them")


if __name__ == "__main__":
    stage("backbone", main, __doc__, "model")

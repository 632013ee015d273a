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
    """Find, prove, trace, prove again, write."""
    from stages.anatomy.find import check_fits, find
    from stages.anatomy.model import build, build_random, senses
    from stages.anatomy.stored import parameters
    from stages.graph.trace import trace_backbone
    from stages.measure.ladder import first_right
    from stages.measure.proof import Proof, prove_lens_formula

    plan = load_plan(model)
    config, code = traced_config(plan), bring_code(plan)
    network = build(config, code)
    anatomy = find(network, plan["blocks"])
    say(f"backbone {model}: {anatomy.describe()}")
    if others := senses(network.config):
        say(f"backbone {model}: {network.config.model_type} also takes {' and '.join(others)}: its text part is traced")
    check_fits(network, anatomy)
    weighty = build_random(config, code)
    prove_lens_formula(weighty, anatomy)
    stored = parameters(network)
    kept = first_right(network, anatomy, trace_backbone, Proof(weighty, anatomy).backbone)
    text = network.config.get_text_config()
    with new_folder(graph_folder(model, "backbone")) as folder:
        (folder / "graph.onnx").write_bytes(kept.graph)
        (folder / "weights.json").write_text(json_text(kept.weights))
        (folder / "parameters.json").write_text(json_text(stored))
        (folder / "anatomy.json").write_text(
            json_text(
                anatomy.as_json()
                | {
                    "description": anatomy.describe(),
                    "vocab_size": text.vocab_size,
                    "tied": bool(getattr(text, "tie_word_embeddings", False)),
                }
            )
        )
    for route, reason in kept.refused.items():
        say(f"backbone {model}: not traced by {route}: {reason}")
    say(
        f"backbone {model}: {len(kept.weights['weights'])} weights, {len(kept.graph) / 1e3:.0f} kB without them, "
        f"traced by {kept.route}, rel {kept.difference:.1e} against torch on random weights"
    )


if __name__ == "__main__":
    stage("backbone", main, __doc__, "model")

"""Trace a model's lens, once, from its config: `python -m stages.lens MODEL`.

In: models/MODEL/params.json (config). Out: data/graphs/MODEL/lens: graph.onnx without weights, weights.json.
"""

from __future__ import annotations

from stages.command import say, stage
from stages.files import graph_folder, json_text, new_folder
from stages.planning.plan import load_plan
from stages.sources.code import bring_code, traced_config


def main(model: str) -> None:
    """Trace, prove, write."""
    from stages.anatomy.find import find
    from stages.anatomy.model import build, build_random
    from stages.graph.trace import trace_lens
    from stages.measure.ladder import first_right
    from stages.measure.proof import Proof

    plan = load_plan(model)
    config, code = traced_config(plan), bring_code(plan)
    network = build(config, code)
    anatomy = find(network, plan["blocks"])
    kept = first_right(network, anatomy, trace_lens, Proof(build_random(config, code), anatomy).lens)
    with new_folder(graph_folder(model, "lens")) as folder:
        (folder / "graph.onnx").write_bytes(kept.graph)
        (folder / "weights.json").write_text(json_text(kept.weights))
    say(
        f"lens {model}: {', '.join(kept.weights['weights'])}; {len(kept.graph) / 1e3:.1f} kB without them, "
        f"traced by {kept.route}, rel {kept.difference:.1e} against torch on random weights"
    )


if __name__ == "__main__":
    stage("lens", main, __doc__, "model")

"""All models at a glance: `python -m stages.catalogue`.

In: data/metrics. Out: data/catalogue.json (a DVC metric: per model the worst step and the last one),
data/plots/fidelity.json (a row per model and step).
"""

from __future__ import annotations

from stages.command import counted, run, say
from stages.files import DATA, metrics_file, read_json, write_json
from stages.planning.plan import planned_models


def main() -> None:
    """Collect the models of the plan and write."""
    found = {name: read_json(metrics_file(name)) for name in planned_models() if metrics_file(name).exists()}
    summary = {}
    for name, metrics in found.items():
        rows = metrics["steps"]
        summary[name] = {
            "steps": len(rows),
            "last_step": rows[-1]["step"],
            "top1_worst": min(row["top1"] for row in rows),
            "kl_max_worst": max(row["kl_max"] for row in rows),
            "logits_rel_worst": max(row["logits_rel"] for row in rows),
            "fp32_logits_rel_worst": max(row["fp32_logits_rel"] for row in rows),
            "probe_probability_last": rows[-1]["probe_probability"],
        }
    write_json(DATA / "catalogue.json", summary)
    keys = ("step", "top1", "top1_strict", "kl_max", "kl_mean", "logits_rel", "hidden_rel")
    rows = [{"model": name} | {k: row[k] for k in keys} for name, metrics in found.items() for row in metrics["steps"]]
    write_json(DATA / "plots" / "fidelity.json", rows)
    say(f"catalogue: {counted(len(found), 'model')}, {counted(len(rows), 'step')}")


if __name__ == "__main__":
    run("catalogue", main)

"""Steps that hold the same weights, wholly or in part: copies, stale shards, frozen layers."""

from __future__ import annotations

import math

# Below this share of the weights, equal tensors say nothing: masks, norms that are still all ones.
WORTH_TELLING = 0.01


def copies(records: dict[str, dict]) -> dict[str, list[str]]:
    """For each step whose weights another has too, the others.

    Args:
        records: checkpoint.json by step.
    """
    groups: dict[str, list[str]] = {}
    for step, record in records.items():
        groups.setdefault(record["weight_digest"], []).append(step)
    others = {s: [o for o in groups[record["weight_digest"]] if o != s] for s, record in records.items()}
    return {step: same for step, same in others.items() if same}


def shared(records: dict[str, dict]) -> list[dict]:
    """Tensors that several steps, whose weights differ as a whole, have in common.

    Only matrices that are not all zero count, and only if together they are a hundredth of the weights.

    Returns:
        `{"steps", "tensors", "share"}` by set of steps, `tensors` being their names in the files and `share`
        their part of the parameters.
    """
    holders: dict[tuple[str, str], list[str]] = {}
    sizes: dict[str, int] = {}
    for step, record in records.items():
        facts = {name: fact for name, fact in record["tensors"].items() if "sha256" in fact}
        sizes |= {name: math.prod(fact["shape"]) for name, fact in facts.items()}
        for name, fact in facts.items():
            if len(fact["shape"]) > 1 and fact["max_abs"]:
                holders.setdefault((name, fact["sha256"]), []).append(step)
    groups: dict[tuple[str, ...], list[str]] = {}
    for (name, _), steps in holders.items():
        if len({records[step]["weight_digest"] for step in steps}) > 1:
            groups.setdefault(tuple(steps), []).append(name)
    whole = sum(sizes.values())
    rows = [
        {"steps": [int(s) for s in steps], "tensors": sorted(names), "share": sum(sizes[n] for n in names) / whole}
        for steps, names in groups.items()
    ]
    return sorted((row for row in rows if row["share"] >= WORTH_TELLING), key=lambda row: row["steps"])

"""Measure a checkpoint's pair against torch in float32, layer by layer: `python -m stages.fidelity MODEL STEP`.

In: data/checkpoints/MODEL/step<STEP>, data/onnx/MODEL/step<STEP>, data/graphs/MODEL, the prompts, the gates.
Out: data/fidelity/MODEL/step<STEP>.json. A gate that is not met ends the stage with exit code 1.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from stages.command import Failed, Refusal, run, say
from stages.files import checkpoint_folder, fidelity_file, graph_folder, pair_folder, read_json, write_json
from stages.graph.limits import HALVES
from stages.manifests.withdraw import withdraw
from stages.measure.gates import beyond_fp32, failures
from stages.measure.tokens import differences, encode, load_tokenizer, read_prompts, reading, token_text
from stages.planning.plan import load_plan
from stages.sources.record import open_checkpoint

# What is measured where a checkpoint has no tokenizer: so many sequences of random ids, so long.
UNTOLD, LENGTH = 8, 12


def texts(model: str, step: str, plan: dict, vocabulary: int, positions: int | None) -> tuple[dict, dict | None]:
    """The token ids to measure on.

    Returns:
        Ids by prompt, the probe under the key `probe`; and how the tokenizer reads, None without one.

    Raises:
        Refusal: the tokenizer gives ids that the model has no row for, or AutoTokenizer reads it differently.
    """
    prompts = read_prompts(Path(plan["prompts"]))
    folder = checkpoint_folder(model, step)
    tokenizer = load_tokenizer(folder)
    if tokenizer is None:
        import torch

        drawn = torch.randint(0, vocabulary, (UNTOLD, LENGTH), generator=torch.Generator().manual_seed(0)).tolist()
        return {f"random {n}": ids for n, ids in enumerate(drawn)}, None
    found = reading(tokenizer, prompts)
    _agree(folder, found)
    ids = {row["id"]: row["ids"] for row in found["golden_ids"]} | {"probe": encode(tokenizer, plan["probe"])}
    beyond = sorted({token for row in ids.values() for token in row if token >= vocabulary})
    if beyond:
        raise Refusal(f"the tokenizer gives id {beyond[0]}, but the model has {vocabulary} rows: not its tokenizer")
    usable = {name: row[:positions] for name, row in ids.items() if row}
    return usable, found


def _agree(folder: Path, found: dict) -> None:
    """Transformers must read the same ids from these files as the browser will."""
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    theirs = [row | {"ids": auto(row["text"])["input_ids"]} for row in found["golden_ids"]]
    differing = differences(found, found | {"golden_ids": theirs})
    if differing:
        raise Refusal(f"AutoTokenizer does not read tokenizer.json as it stands: {differing[0]}")


def measure(model: str, step: str, plan: dict) -> dict:
    """The report of a checkpoint's pair, gates applied."""
    import torch
    import transformers

    from stages.anatomy.find import find
    from stages.anatomy.model import build
    from stages.measure import pair
    from stages.measure.reference import float32_values, load_reference

    transformers.logging.set_verbosity_error()
    checkpoint = open_checkpoint(model, step)
    cast = read_json(pair_folder(model, step) / "f16.json")
    if "rejected" in cast:
        raise Refusal(cast["rejected"])
    graphs = {half: graph_folder(model, half) for half in HALVES}
    facts = read_json(graphs["backbone"] / "anatomy.json")
    network = load_reference(checkpoint.folder)
    values = float32_values(network)
    reference = pair.Reference(network, find(build(plan["config"])))
    positions = getattr(network.config.get_text_config(), "max_position_embeddings", None)
    ids, tokenizer = texts(model, step, plan, facts["vocab_size"], positions)

    compared, different = pair.wrong_weights(pair_folder(model, step), graphs, values)
    fp32, f16 = pair.before_f16(graphs, values), pair.shipped(pair_folder(model, step))
    scores = pair.PromptScores(facts["num_layers"] + 1, plan["gates"]["near_tie"])
    last = {name: scores.add(reference, fp32, f16, row) for name, row in ids.items()}
    shapes = pair.compare_shapes(reference, fp32, f16, facts["vocab_size"], positions)
    probe = last.get("probe")
    report = {
        "schema": 1,
        "model": model,
        "step": step,
        "weight_digest": checkpoint.record["weight_digest"],
        "positions": sum(len(row) for row in ids.values()),
        **scores.as_json(),
        "shapes": shapes,
        "weights": {"compared": compared, "different": different},
        "probe": _probe(checkpoint_folder(model, step), plan["probe"], probe),
        "tokenizer": tokenizer,
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "gates": plan["gates"],
    }
    report["fp32_own_rounding"] = None
    if beyond_fp32(report, plan["gates"]):
        rows = [torch.tensor([row]) for row in ids.values()]
        inputs = [(row, torch.ones_like(row)) for row in rows]
        inputs += [(row, mask) for _, row, mask in pair.batches(facts["vocab_size"], positions)]
        report["fp32_own_rounding"] = reference.own_rounding(inputs)
    report["failed"] = failures(report, plan["gates"])
    return pair.finite(report)


def _probe(folder: Path, text: str, logits: object) -> dict | None:
    """The reference's next token after the probe, with its probability."""
    tokenizer = load_tokenizer(folder)
    if logits is None or tokenizer is None:
        return None
    top = int(logits.argmax())
    return {
        "text": text,
        "top1_id": top,
        "top1_token": token_text(tokenizer, top),
        "probability": float(logits.softmax(-1)[top]),
    }


def main(model: str, step: str) -> None:
    """Measure, apply the gates, write the report; with `on_failure: exclude` a failure is written and not raised."""
    withdraw(model)
    plan = load_plan(model)
    try:
        report = measure(model, step, plan)
    except Refusal as refusal:
        if plan["on_failure"] != "exclude":
            raise
        write_json(fidelity_file(model, step), {"schema": 1, "step": step, "rejected": str(refusal)})
        return
    f16 = report["f16"]
    say(
        f"fidelity {model} step {step}: {f16['cells']} cells, "
        f"top-1 {f16['top1']:.2%} ({f16['top1_strict']:.2%} strict), "
        f"KL max {_number(f16['kl_max'])}, stream rel fp32 {_number(report['fp32']['hidden_rel'])} "
        f"f16 {_number(f16['hidden_rel'])}"
    )
    if report["failed"]:
        reason = "; ".join(report["failed"])
        if plan["on_failure"] != "exclude":
            raise Failed(reason, report)
        say(f"fidelity {model} step {step}: rejected: {reason}")
        report["rejected"] = reason
    write_json(fidelity_file(model, step), report)


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.1e}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure a checkpoint's pair against torch in float32.")
    parser.add_argument("model")
    parser.add_argument("step")
    args = parser.parse_args()
    run("fidelity", lambda: main(args.model, args.step), args.model, args.step)

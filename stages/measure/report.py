"""The report of one pair: on which texts, against what, which gates it fails."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import torch
import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from stages.anatomy.find import Anatomy
from stages.command import Refusal
from stages.files import checkpoint_folder, graph_folder, pair_folder, read_json, sha256_file
from stages.graph import lengths
from stages.graph.limits import HALVES
from stages.measure import pair
from stages.measure.gates import beyond_fp32, failures
from stages.measure.reference import float32_values, load_reference
from stages.sources.code import check_code
from stages.sources.record import open_checkpoint
from stages.tokens.reading import differences, encode, load_tokenizer, read_prompts, reading, token_text

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
    """Transformers must read the same ids from these files as the browser will; no code of the files' own runs."""
    custom = any("auto_map" in read_json(file) for file in folder.glob("*config.json"))
    kind = PreTrainedTokenizerFast if custom else AutoTokenizer
    auto = kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    theirs = [row | {"ids": auto(row["text"])["input_ids"]} for row in found["golden_ids"]]
    differing = differences(found, found | {"golden_ids": theirs})
    if differing:
        raise Refusal(f"AutoTokenizer does not read tokenizer.json as it stands: {differing[0]}")


def measure(model: str, step: str, plan: dict) -> dict:
    """The report of a checkpoint's pair, gates applied: what data/fidelity/MODEL/step<STEP>.json holds.

    Args:
        model: the model.
        step: its step.
        plan: the model's plan.

    Raises:
        Refusal: the checkpoint or its pair was rejected or changed, or its tokenizer does not fit.
    """
    transformers.logging.set_verbosity_error()
    checkpoint = open_checkpoint(model, step)
    cast = read_json(pair_folder(model, step) / "f16.json")
    if "rejected" in cast:
        raise Refusal(cast["rejected"])
    graphs = {half: graph_folder(model, half) for half in HALVES}
    facts = read_json(graphs["backbone"] / "anatomy.json")
    code = check_code(plan, checkpoint.folder)
    network = load_reference(checkpoint.folder, checkpoint.is_pickled, code is not None)
    values = float32_values(network)
    reference = pair.Reference(network, Anatomy.from_json(facts))
    positions = lengths.positions(network.config)
    ids, tokenizer = texts(model, step, plan, facts["vocab_size"], positions)

    fp32, f16 = pair.before_f16(graphs, values), pair.shipped(pair_folder(model, step))
    scores = pair.PromptScores(facts["num_layers"] + 1, plan["gates"]["near_tie"])
    last = {name: scores.add(reference, fp32, f16, row) for name, row in ids.items()}
    sizes = (facts["vocab_size"], positions)
    shapes = pair.compare_shapes(reference, fp32, *sizes)
    # From here on the reference has the weights that are stored: what differs now is the graph, not the cast.
    compared, different = pair.use_stored(pair_folder(model, step), graphs, values)
    stored = pair.compare_shapes(reference, f16, *sizes)
    shapes = [
        row | {"fp32_rel": row["rel"], "stored_rel": other["rel"]} for row, other in zip(shapes, stored, strict=True)
    ]
    probe = last.get("probe")
    report = {
        "schema": 1,
        "model": model,
        "step": step,
        "weight_digest": checkpoint.record["weight_digest"],
        "files": {path.name: sha256_file(path) for path in sorted(pair_folder(model, step).iterdir())},
        "positions": sum(len(row) for row in ids.values()),
        **scores.as_json(),
        "fp32_own_rounding": None,
        "shapes": shapes,
        "weights": {"compared": compared, "different": different},
        "probe": _probe(checkpoint_folder(model, step), plan["probe"], probe),
        "tokenizer": tokenizer,
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
        "gates": plan["gates"],
    }
    if beyond_fp32(report, plan["gates"]):
        inputs = [(row, torch.ones_like(row)) for row in map(torch.tensor, ([row] for row in ids.values()))]
        inputs += [(row, mask) for _, row, mask in pair.batches(facts["vocab_size"], positions)]
        report["fp32_own_rounding"] = pair.own_rounding(reference, inputs)
    report["failed"] = failures(report, plan["gates"])
    return pair.finite(report)


def _probe(folder: Path, text: str, logits: torch.Tensor | None) -> dict | None:
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

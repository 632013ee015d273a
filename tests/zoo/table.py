"""docs/architectures.md and docs/architectures.json from the rows of a run."""

from __future__ import annotations

import json
from pathlib import Path

import onnxruntime
import torch
import transformers

from stages.files import write_json
from tests.zoo.groups import GROUPS, group

DOCS = Path(__file__).parents[2] / "docs"
INTRODUCTION = """\
# Which architectures go through

Made by `make zoo`, with transformers {transformers}, torch {torch}, ONNX Runtime {onnxruntime}: a tiny random model of
every type in transformers' list of causal language models, from a saved checkpoint to a verified manifest, through the
pipeline's own stages. **{passed} of {decoders} decoders pass.**

- *route*: what traced the backbone; the first that gives a right graph is kept.
- *fp32*: the largest difference of the stream from torch, max|a-b| / max|a|, over all layers, prompts and shapes, with
  the weights in float32; *f16*: the same with the weights as they are shipped, on prompts.
- *draws*: how many random models it took. A random router or a random argmax now and then decides by a hair, which
  float16 tips over; up to {draws} are tried.
- *CPU s*: of the whole run; *trace*: of it for the backbone, proof included.
"""


def write(rows: dict[str, dict], draws: int) -> None:
    """Both files, whole; rows of types that were not run this time are kept."""
    DOCS.mkdir(exist_ok=True)
    file = DOCS / "architectures.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    rows = dict(sorted((known | rows).items()))
    write_json(file, rows)
    decoders = [row for kind, row in rows.items() if group(kind) == "decoder"]
    text = INTRODUCTION.format(
        transformers=transformers.__version__,
        torch=torch.__version__.partition("+")[0],
        onnxruntime=onnxruntime.__version__,
        passed=sum(row["status"] == "pass" for row in decoders),
        decoders=len(decoders),
        draws=draws,
    )
    for name, title in GROUPS.items():
        mine = {kind: row for kind, row in rows.items() if group(kind) == name}
        text += "\n\n".join(["", f"## {title}", *filter(None, (_passed(mine), _others(mine)))]).replace("\n", "", 1)
        text += "\n"
    (DOCS / "architectures.md").write_text(text)


def _passed(rows: dict[str, dict]) -> str:
    lines = [
        "| type | route | fp32 | f16 | draws | CPU s | trace | what was found |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {kind} | {row['route']} | {row['rel_fp32']:.0e} | {row['rel_f16']:.0e} | {row['draws']} "
        f"| {row['cpu_s']:.0f} | {row['trace_s']:.0f} | {row['found']} |"
        for kind, row in rows.items()
        if row["status"] == "pass"
    ]
    return "\n".join(lines) if len(lines) > 2 else ""


def _others(rows: dict[str, dict]) -> str:
    lines = ["| type | | reason |", "|---|---|---|"]
    lines += [
        f"| {kind} | {row['status']} | {row['reason'].removeprefix(f'{kind}: ').replace('|', '/')} |"
        for kind, row in rows.items()
        if row["status"] != "pass"
    ]
    return "\n".join(lines) if len(lines) > 2 else ""

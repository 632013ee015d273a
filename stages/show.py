"""A logit lens in the terminal, from the shipped pair alone: `python -m stages.show MODEL [--prompt TEXT]`.

The next token after the prompt, layer by layer, at the first, a middle and the last step of the manifest.
"""

from __future__ import annotations

import argparse

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stages.command import Refusal, run
from stages.files import manifest_file, pair_folder, read_json
from stages.graph.limits import HALVES
from stages.graph.session import open_session
from stages.tokens.reading import encode, load_tokenizer, token_text


def lens(model: str, step: str, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The top-1 token and its probability at the last position, for every layer [L+1]."""
    folder = pair_folder(model, step)
    backbone, head = (open_session(folder / f"{half}.f16.onnx") for half in HALVES)
    row = np.array([ids], dtype=np.int64)
    hidden = backbone.run(["hidden_states"], {"input_ids": row, "attention_mask": np.ones_like(row)})[0]
    logits = head.run(["logits"], {"hidden": np.ascontiguousarray(hidden[:, 0, -1])})[0].astype(np.float64)
    shares = np.exp(logits - logits.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    return logits.argmax(-1), shares.max(-1)


def main(model: str, prompt: str | None) -> None:
    """Print the table."""
    if not manifest_file(model).exists():
        raise Refusal(f"{manifest_file(model)} is not there: run `make repro`")
    manifest = read_json(manifest_file(model))
    tokenizer = load_tokenizer(manifest_file(model).parent / "tokenizer")
    if tokenizer is None:
        raise Refusal(f"{model} has no tokenizer: no text can be shown")
    text = prompt or manifest["probe"]
    ids = encode(tokenizer, text)
    if not ids:
        raise Refusal("the prompt is empty: give it at least one token")
    steps = [str(step["step"]) for step in manifest["steps"]]
    chosen = list(dict.fromkeys([steps[0], steps[len(steps) // 2], steps[-1]]))
    columns = [lens(model, step, ids) for step in chosen]
    table = Table()
    table.add_column("layer", justify="right")
    for step in chosen:
        table.add_column(f"step {step}", min_width=20)
    for layer in reversed(range(len(columns[0][0]))):
        # A token such as "[b]" is text here, not markup.
        cells = [Text(f"{token_text(tokenizer, int(top[layer]))!r} {share[layer]:.1%}") for top, share in columns]
        table.add_row("input" if layer == 0 else str(layer), *cells)
    console = Console()
    console.print(f"{model}: what each layer would say after “{text}”", soft_wrap=True, markup=False, highlight=False)
    console.print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="A logit lens in the terminal, from the shipped pair alone.")
    parser.add_argument("model")
    parser.add_argument("--prompt", help="the text; by default the model's probe")
    args = parser.parse_args()
    run("show", lambda: main(args.model, args.prompt))

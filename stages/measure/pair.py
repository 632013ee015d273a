"""One checkpoint's pair against torch: every layer, several shapes, both paddings, before and after float16."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnx import numpy_helper
from transformers import PreTrainedModel

from stages.anatomy.find import Anatomy
from stages.anatomy.halves import Backbone, Lens
from stages.files import read_json
from stages.graph.limits import HALVES
from stages.graph.session import open_f32, open_session
from stages.measure.compare import Scores, relative, total

# (batch, tokens, tokens of padding in the first row, side)
SHAPES = [(1, 1, 0, ""), (1, 2, 0, ""), (2, 9, 0, ""), (3, 64, 0, ""), (2, 9, 4, "left"), (2, 9, 4, "right")]
SEED = 20
# So many rows go through a lens at once: enough to be efficient, few enough for [rows, vocabulary] floats.
ROWS = 256


@dataclass(frozen=True)
class Pair:
    """A backbone and a lens, in ONNX Runtime."""

    backbone: ort.InferenceSession
    lens: ort.InferenceSession

    def hidden(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The stream [L+1,B,T,H]."""
        feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
        return torch.from_numpy(self.backbone.run(["hidden_states"], feeds)[0])

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """The logits [N,V] of rows of the stream [N,H]."""
        return torch.from_numpy(self.lens.run(["logits"], {"hidden": rows.contiguous().numpy()})[0])


def shipped(folder: Path) -> Pair:
    """The pair of a step's folder."""
    return Pair(*(open_session(folder / f"{half}.f16.onnx") for half in HALVES))


def before_f16(folders: dict[str, Path], values: dict[str, np.ndarray]) -> Pair:
    """The same graphs with the reference's own float32 weights."""
    return Pair(*(open_f32(folders[half], values) for half in HALVES))


class Reference:
    """The torch side of every comparison."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy) -> None:
        self.backbone, self.lens = Backbone(model, anatomy), Lens(model, anatomy)

    @torch.no_grad()
    def run(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream [L+1,B,T,H] and the model's own logits [B,T,V]."""
        return self.backbone.run(ids, mask)

    @torch.no_grad()
    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """The head's logits [N,V] of rows [N,H]."""
        return self.lens(rows)["logits"]


@torch.no_grad()
def one_unit_off(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model, each of its weights moved by one unit in the last place, up or down at random."""
    moved = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(SEED)
    for parameter in moved.parameters():
        up = torch.rand(parameter.shape, generator=generator) < 0.5
        parameter.copy_(torch.nextafter(parameter, torch.where(up, torch.inf, -torch.inf)))
    return moved


def own_rounding(reference: Reference, inputs: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """What float32 can tell of a model: how far it moves when each weight moves by one unit in its last place.

    The worst relative change over the streams and logits of every layer, at live positions of all inputs.
    """
    moved = Reference(one_unit_off(reference.backbone.base), reference.backbone.anatomy)
    worst = 0.0
    for ids, mask in inputs:
        live = mask.bool()
        for before, after in zip(reference.run(ids, mask)[0], moved.run(ids, mask)[0], strict=True):
            mine, other = before[live], after[live]
            logits = relative(reference.logits(mine), moved.logits(other))
            worst = max(worst, relative(mine, other), logits)
    return worst


def _by_layer(head: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, layers: range) -> list[torch.Tensor]:
    """The logits [T,V] of some layers of one sequence's stream [L+1,1,T,H], from one call of a head."""
    rows = hidden[layers.start : layers.stop, 0]
    return list(head(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]))


class PromptScores:
    """What the prompts show, layer by layer."""

    def __init__(self, layers: int, near_tie: float) -> None:
        self.near_tie = near_tie
        self.scores = [Scores() for _ in range(layers)]
        self.plain = [Scores() for _ in range(layers)]
        self.rel = {"fp32": [0.0] * layers, "f16": [0.0] * layers}
        self.max_abs = [0.0] * layers
        self.identity = 0.0

    def add(self, reference: Reference, fp32: Pair, f16: Pair, ids: list[int]) -> torch.Tensor:
        """Compare one prompt at every layer and position; returns the reference logits of its last position."""
        row = torch.tensor([ids])
        mask = torch.ones_like(row)
        hidden, own = reference.run(row, mask)
        hidden_fp32, hidden_f16 = fp32.hidden(row, mask), f16.hidden(row, mask)
        for layer in range(len(hidden)):
            self.max_abs[layer] = max(self.max_abs[layer], float(hidden[layer].abs().max()))
            self._worse("fp32", layer, relative(hidden[layer], hidden_fp32[layer]))
            self._worse("f16", layer, relative(hidden[layer], hidden_f16[layer]))
        # Several layers a call: an unembedding is large, and reading it costs more than using it on a few rows.
        count = max(1, ROWS // len(ids))
        for first in range(0, len(hidden), count):
            layers = range(first, min(first + count, len(hidden)))
            logits = _by_layer(reference.logits, hidden, layers)
            logits_fp32 = _by_layer(fp32.logits, hidden_fp32, layers)
            logits_f16 = _by_layer(f16.logits, hidden_f16, layers)
            for layer, mine, plain, shipped in zip(layers, logits, logits_fp32, logits_f16, strict=True):
                self.plain[layer].add(mine, plain, self.near_tie, with_kl=False)
                self.scores[layer].add(mine, shipped, self.near_tie)
        self.identity = max(self.identity, relative(own[0], logits[-1]))
        return own[0, -1]

    def _worse(self, which: str, layer: int, value: float) -> None:
        self.rel[which][layer] = max(self.rel[which][layer], value)

    def as_json(self) -> dict:
        """Overall numbers, those of the final layer, and a row for each layer."""
        f16, fp32 = total(self.scores).as_json(), total(self.plain).as_json()
        fp32 = {key: value for key, value in fp32.items() if not key.startswith("kl_")}
        rows = [
            {
                "layer": layer,
                "max_abs": self.max_abs[layer],
                "fp32_hidden_rel": self.rel["fp32"][layer],
                "fp32_logits_rel": self.plain[layer].rel,
                "f16_hidden_rel": self.rel["f16"][layer],
                **{f"f16_{key}": value for key, value in self.scores[layer].as_json().items() if key != "cells"},
            }
            for layer in range(len(self.scores))
        ]
        final = self.scores[-1].as_json()
        return {
            "identity_rel": self.identity,
            "fp32": fp32 | {"hidden_rel": max(self.rel["fp32"])},
            "f16": f16
            | {
                "hidden_rel": max(self.rel["f16"]),
                "final_top1": final["top1"],
                "final_top1_strict": final["top1_strict"],
            },
            "layers": rows,
        }


def batches(vocabulary: int, positions: int | None) -> Iterator[tuple[dict, torch.Tensor, torch.Tensor]]:
    """Random ids in every shape, with their masks; never longer than the model's positions."""
    generator = torch.Generator().manual_seed(SEED)
    for batch, tokens, padding, side in SHAPES:
        length = min(tokens, positions or tokens)
        ids = torch.randint(0, vocabulary, (batch, length), generator=generator)
        mask = torch.ones_like(ids)
        if side == "left":
            mask[0, :padding] = 0
        if side == "right":
            mask[0, -padding:] = 0
        yield {"batch": batch, "tokens": length, "padding": side}, ids, mask


def compare_shapes(reference: Reference, pair: Pair, vocabulary: int, positions: int | None) -> list[dict]:
    """Streams at every layer and logits of the last, at live positions; padded ones must be finite.

    Returns:
        A row for each shape: `{"batch", "tokens", "padding", "rel"}`.
    """
    rows = []
    for shape, ids, mask in batches(vocabulary, positions):
        live = mask.bool()
        hidden, own = reference.run(ids, mask)
        other = pair.hidden(ids, mask)
        worst = max(relative(hidden[layer][live], other[layer][live]) for layer in range(len(hidden)))
        logits = relative(own[live], pair.logits(other[-1][live]))
        rows.append(shape | {"rel": max(worst, logits) if torch.isfinite(other).all() else float("inf")})
    return rows


def use_stored(folder: Path, graphs: dict[str, Path], values: dict[str, np.ndarray]) -> tuple[int, list[str]]:
    """Compare every stored weight, bit for bit, with the cast of the reference's, then put it in its place.

    A weight of both halves is compared a second time with what the first one stored.

    Args:
        folder: the pair.
        graphs: the halves it was made from.
        values: the reference's own weights, which become those that are stored.

    Returns:
        How many were compared, and the names of those that differ.
    """
    compared, wrong = 0, []
    for half in HALVES:
        slots = read_json(graphs[half] / "weights.json")["weights"]
        stored = {tensor.name: tensor for tensor in onnx.load(folder / f"{half}.f16.onnx").graph.initializer}
        for name, slot in slots.items():
            array = numpy_helper.to_array(stored[name])
            value = values[slot["parameter"]]
            placed = value.T if slot["transpose"] else value
            with np.errstate(over="ignore"):
                expected = placed.astype(array.dtype)
            compared += 1
            if array.shape != expected.shape or not np.array_equal(array, expected):
                wrong.append(f"{half}: {name}")
            else:
                placed[...] = array
    return compared, wrong


def finite(value: object) -> object:
    """The same report with null for what JSON has no number for."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value

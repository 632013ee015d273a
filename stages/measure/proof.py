"""Before a traced graph is kept: the model's own formula in torch, and the graph against torch, on random weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from stages.anatomy.find import Anatomy
from stages.anatomy.halves import Backbone, Lens
from stages.command import Refusal
from stages.graph import lengths
from stages.graph.session import open_f32
from stages.measure import pair
from stages.measure.compare import relative
from stages.measure.gates import ROUNDINGS
from stages.measure.reference import float32_values

# max|a-b| / max|a| in float32; the graphs that are right lie at 1e-7 to 1e-6.
LIMIT = 1e-5
# A formula that torch itself computes in another order, and what sets a stream apart from one that a token changed.
IDENTITY, CAUSAL = 1e-5, 1e-3
TOKENS = 12


def _inputs(model: PreTrainedModel, tokens: int = TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(pair.SEED)
    ids = torch.randint(0, model.config.get_text_config().vocab_size, (2, tokens), generator=generator)
    return ids, torch.ones_like(ids)


@torch.no_grad()
def prove_lens_formula(model: PreTrainedModel, anatomy: Anatomy) -> None:
    """Check in torch that what was found is a logit lens.

    What a position predicts depends on no later token; the lens of the last stream is the model's output; the lens
    of every stream is what the model makes of it, whatever the tokens and the row's neighbours.

    Raises:
        Refusal: one of these does not hold.
    """
    kind = model.config.model_type
    backbone, lens = Backbone(model, anatomy), Lens(model, anatomy)
    ids, mask = _inputs(model)
    hidden, logits = backbone.run(ids, mask)
    other = ids.clone()
    other[:, -1] = (other[:, -1] + 1) % model.config.get_text_config().vocab_size
    earlier = relative(hidden[:, :, :-1], backbone.run(other, mask)[0][:, :, :-1])
    if not earlier <= CAUSAL:
        raise Refusal(
            f"{kind}: an encoder, in which a token changes the streams before it (rel {earlier:.1e}): no logit lens "
            "over a causal stream"
        )
    for layer, stream in enumerate(hidden):
        alone = _head(kind, lens, stream.flatten(0, 1))["logits"].unflatten(0, stream.shape[:2])
        if layer == len(hidden) - 1:
            _same(kind, f"lens(hidden[{layer}]) and the model's logits", relative(logits, alone))
        within = _head(kind, lens.continued, stream, input_ids=ids, attention_mask=mask)
        _same(kind, f"the lens of layer {layer} row by row and within a sequence", relative(within, alone))


def _head(kind: str, run: Callable, *args: torch.Tensor, **inputs: torch.Tensor) -> Any:
    try:
        return run(*args, **inputs)
    except Exception as error:  # the rest of any type's forward may want of its blocks what no stream holds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise Refusal(f"{kind}: what follows its blocks does not run on a stream alone ({reason}): no lens") from None


def _same(kind: str, what: str, difference: float) -> None:
    if not difference <= IDENTITY:
        raise Refusal(
            f"{kind}: {what} differ by rel {difference:.1e}: its head reads more than one position of a stream"
        )


class Proof:
    """Graphs of one model against the model itself, with random weights."""

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy) -> None:
        self.model, self.anatomy = model, anatomy
        self.reference = pair.Reference(model, anatomy)
        self.values = float32_values(model)
        self.rounding: float | None = None

    def backbone(self, folder: Path) -> float:
        """The worst difference of the streams, in every shape; see `shapes`.

        Args:
            folder: graph.onnx and weights.json, as `split` makes them.

        Raises:
            Refusal: the graph is not the model, with the shape and the difference.
        """
        session = open_f32(folder, self.values)
        worst = 0.0
        for shape, ids, mask in self.shapes():
            live = mask.bool()
            hidden, _ = self.reference.run(ids, mask)
            feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy()}
            try:
                found = torch.from_numpy(session.run(["hidden_states"], feeds)[0])
            except Exception as error:  # ONNX Runtime raises as many kinds as it has return codes
                reason = " ".join(str(error).split())[:200]
                raise Refusal(f"does not run at {shape}: {reason}") from None
            if found.shape != hidden.shape:
                raise Refusal(f"gives {list(found.shape)} at {shape}, expected {list(hidden.shape)}")
            layers = [relative(mine[live], other[live]) for mine, other in zip(hidden, found, strict=True)]
            difference = max(layers) if torch.isfinite(found).all() else float("inf")
            self._judge(difference, f"at {shape}, layer {layers.index(max(layers))}")
            worst = max(worst, difference)
        return worst

    def lens(self, folder: Path) -> float:
        """The worst difference of the logits, on streams of every layer, one row and many at a time.

        Raises:
            Refusal: the graph is not the model's head, with the difference.
        """
        session = open_f32(folder, self.values)
        ids, mask = _inputs(self.model)
        rows = self.reference.run(ids, mask)[0].flatten(0, 2)
        worst = 0.0
        for count in (1, 7, len(rows)):
            expected = self.reference.logits(rows[-count:])
            found = torch.from_numpy(session.run(["logits"], {"hidden": rows[-count:].contiguous().numpy()})[0])
            difference = relative(expected, found) if found.shape == expected.shape else float("inf")
            self._judge(difference, f"with {count} rows")
            worst = max(worst, difference)
        return worst

    def _judge(self, difference: float, where: str) -> None:
        """Refuse a difference that is beyond float32, the model's own rounding allowed for."""
        if difference <= LIMIT:
            return
        if self.rounding is None:
            self.rounding = pair.own_rounding(self.reference, [(ids, mask) for _, ids, mask in self.shapes()])
        allowed = max(LIMIT, ROUNDINGS * self.rounding)
        if not difference <= allowed:
            raise Refusal(f"differs from torch by rel {difference:.1e} {where} (allowed {allowed:.1e})")

    def shapes(self) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
        """Shapes in words, ids and masks: one token and many, both paddings, longer than any window or chunk."""
        config = self.model.config
        vocabulary, longest = config.get_text_config().vocab_size, lengths.beyond(config)
        shapes = [
            (f"({row['batch']}, {row['tokens']}){' padded ' + row['padding'] if row['padding'] else ''}", ids, mask)
            for row, ids, mask in pair.batches(vocabulary, lengths.positions(config))
        ]
        ids = torch.randint(0, vocabulary, (1, longest), generator=torch.Generator().manual_seed(pair.SEED))
        return [*shapes, (f"(1, {longest})", ids, torch.ones_like(ids))]

"""The two halves of a decoder as modules: the backbone up to the last block, the lens after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.anatomy.find import Anatomy, first_tensor


def _entering(args: tuple, kwargs: dict[str, Any], dims: int) -> torch.Tensor:
    """The stream that a block is called with: its first floating tensor of as many axes, by place or by name."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    return next(value for value in given if value.is_floating_point() and value.dim() == dims)


class Backbone(nn.Module):
    """The raw residual stream: what enters the first block, then what leaves each block, before the final norm.

    `input_ids`, `attention_mask` [B,T] int64 → `hidden_states` [L+1,B,T,H].
    """

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy) -> None:
        super().__init__()
        self.base = model
        self.anatomy = anatomy

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the whole model; the unembedding drops out as dead code when this is traced."""
        return {"hidden_states": self.run(input_ids, attention_mask)[0]}

    def run(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream [L+1,B,T,H] and the model's own logits [B,T,V]."""
        seen: list[torch.Tensor] = []
        blocks = self.anatomy.blocks(self.base)

        def enters(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
            if not seen:
                seen.append(_entering(args, kwargs, len(self.anatomy.shape)))

        handles = [blocks[0].register_forward_pre_hook(enters, with_kwargs=True)]
        handles += [
            block.register_forward_hook(lambda module, args, out: seen.append(first_tensor(out)))
            for block in dict.fromkeys(blocks)
        ]
        try:
            out = self.base(input_ids=input_ids, attention_mask=attention_mask, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([self.anatomy.flat(value) for value in seen]), out.logits


class Lens(nn.Module):
    """Everything that the model does between its last block and its logits: the rest of its own forward.

    `hidden` [N,H] → `logits` [N,V]. Norm, projection, scales, caps and biases come along, whatever they are.
    """

    def __init__(self, model: PreTrainedModel, anatomy: Anatomy) -> None:
        super().__init__()
        self.base = model
        self.anatomy = anatomy

    def forward(self, hidden: torch.Tensor) -> dict[str, torch.Tensor]:
        """Run the model with every block replaced by one that returns `hidden`; each row is a batch of its own."""
        ids = torch.zeros((hidden.shape[0], 1), dtype=torch.long)
        return {"logits": self.continued(hidden.unsqueeze(1), input_ids=ids).squeeze(1)}

    def continued(self, hidden: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """The logits [B,T,V] of the model on some inputs if every block returns `hidden` [B,T,H]."""
        stream = self.anatomy.unflat(hidden)
        others = (None,) * (self.anatomy.tuple_size - 1)
        with self._stubbed((stream, *others) if self.anatomy.tuple_size else stream):
            return self.base(**inputs, use_cache=False).logits

    @contextmanager
    def _stubbed(self, output: Any) -> Iterator[None]:
        blocks = list(dict.fromkeys(self.anatomy.blocks(self.base)))
        for block in blocks:
            block.forward = lambda *args, **kwargs: output
        try:
            yield
        finally:
            for block in blocks:
                del block.forward

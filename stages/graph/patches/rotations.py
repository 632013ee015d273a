"""Rotary embeddings as complex numbers, which ONNX does not have: as cosines and sines instead."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stages.graph.patches.patch import Patch


def angles(self: Any, x: Tensor, position_ids: Tensor) -> Tensor:
    """Cosine and sine of every angle, `position_ids` [B,T] → [B,T,D/2,2]."""
    turned = position_ids[..., None].float() * self.inv_freq.float()
    return torch.stack([turned.cos(), turned.sin()], dim=-1) * self.attention_scaling


def rotate(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys [B,T,H,D], whose neighbours are the two parts of a number, turned by their angles."""
    cos, sin = freqs_cis[:, :, None].unbind(-1)

    def turn(rows: Tensor) -> Tensor:
        real, imaginary = rows.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(3)

    return turn(xq), turn(xk)


_WHY = "complex numbers; can go when transformers.exporters translates them for this type, as it does for deepseek_v2"

PATCHES = [
    Patch("Llama4TextRotaryEmbedding.forward", ("llama4.modeling_llama4",), angles, _WHY),
    Patch("apply_rotary_emb", ("llama4.modeling_llama4",), rotate, _WHY),
]

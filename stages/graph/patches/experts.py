"""Experts that are chosen in a Python loop over those that some token needs: every expert on every token instead.

That costs as many times more multiplications as there are experts for each one used; no weight is copied.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stages.graph.patches.patch import Patch


def _share(expert: int, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """How much of an expert each token takes, [N,1]."""
    return (top_k_weights * (top_k_index == expert)).sum(-1, keepdim=True)


def dbrx(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts of DBRX."""
    rows = hidden_states.reshape(-1, self.hidden_size)
    parts = [
        weight.view(-1, self.ffn_hidden_size, self.hidden_size) for weight in (self.mlp.w1, self.mlp.v1, self.mlp.w2)
    ]
    total = torch.zeros_like(rows)
    for expert in range(self.num_experts):
        w1, v1, w2 = (part[expert] for part in parts)
        total = total + self.mlp(rows, w1, v1, w2) * _share(expert, top_k_index, top_k_weights)
    return total.view(hidden_states.shape[0], -1, self.hidden_size)


def longcat(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """The experts of LongCat-Flash, of which some do nothing to their input."""
    total = torch.zeros_like(hidden_states)
    for expert in range(self.total_experts):
        result = hidden_states
        if expert < self.num_routed_experts:
            gate, up = functional.linear(hidden_states, self.gate_up_proj[expert]).chunk(2, dim=-1)
            result = functional.linear(self.act_fn(gate) * up, self.down_proj[expert])
        total = total + result * _share(expert, top_k_index, top_k_weights)
    return total


_WHY = "a loop over the experts that some token needs; can go when transformers calls them as it does those of others"

PATCHES = [
    Patch("DbrxExperts.forward", ("dbrx.modeling_dbrx",), dbrx, _WHY),
    Patch("LongcatFlashExperts.forward", ("longcat_flash.modeling_longcat_flash",), longcat, _WHY),
]

"""Recurrences over the tokens as a scan: one step for each token, whatever their number.

The originals are Python loops, over tokens or over chunks of them, which tracing unrolls for one length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from stages.graph.patches.patch import Patch


def _scan(step: Callable[[Any, Any], tuple[Any, Tensor]], state: Any, inputs: tuple[Tensor, ...]) -> Tensor:
    """The outputs [T, ...] of a step over inputs [T, ...], from a first state on."""
    from torch._higher_order_ops.scan import scan

    return scan(step, state, inputs, dim=0)[1]


def selective_scan(  # noqa: PLR0917
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: Any,
) -> Any:
    """Mamba's selective scan: h = exp(A dt) h + dt B x, y = C h + D x (Gu and Dao 2023, algorithm 2).

    `hidden_states`, `dt` [B,D,T], `A` [D,N], `B`, `C` [B,N,T] → [B,D,T]. There is no last state to return.
    """
    if delta_bias is not None:
        dt = dt + delta_bias[..., None]
    if delta_softplus:
        dt = functional.softplus(dt)

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        value, pace, into, out = now
        state = torch.exp(A * pace[..., None]) * state + (pace * value)[..., None] * into[:, None, :]
        return state, (state * out[:, None, :]).sum(-1)

    first = hidden_states.new_zeros(hidden_states.shape[0], A.shape[0], A.shape[1])
    inputs = (hidden_states.permute(2, 0, 1), dt.permute(2, 0, 1), B.permute(2, 0, 1), C.permute(2, 0, 1))
    result = _scan(step, first, inputs).permute(1, 2, 0)
    if D is not None:
        result = result + hidden_states * D[None, :, None]
    if z is not None:
        result = result * functional.silu(z)
    return (result, None) if return_last_state else result


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *args: Any,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The gated delta rule: S = exp(g) S, S = S + k (beta (v - S k)), o = S q (Yang et al. 2024, equation 10).

    `query`, `key` [B,T,Hk,K], `value` [B,T,Hv,V], `beta` [B,T,Hv], `g` [B,T,Hv] or, for each channel, [B,T,Hv,K]
    → [B,T,Hv,V]. There is no last state to return.
    """
    if key.shape[2] != value.shape[2]:
        query, key = (part.repeat_interleave(value.shape[2] // key.shape[2], dim=2) for part in (query, key))
    if use_qk_l2norm_in_kernel:
        query, key = (part * torch.rsqrt((part * part).sum(-1, keepdim=True) + 1e-6) for part in (query, key))
    query = query * query.shape[-1] ** -0.5
    decay = g.exp() if g.dim() == key.dim() else g.exp()[..., None]

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        asked, known, given, kept, rate = now
        state = state * kept[..., None]
        change = (given - (state * known[..., None]).sum(-2)) * rate[..., None]
        state = state + known[..., None] * change[..., None, :]
        return state, (state * asked[..., None]).sum(-2)

    first = value.new_zeros(value.shape[0], value.shape[2], key.shape[3], value.shape[3])
    inputs = tuple(part.transpose(0, 1) for part in (query, key, value, decay, beta))
    return _scan(step, first, inputs).transpose(0, 1), None


def wkv(time_decay: Tensor, time_first: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
    """RWKV's weighted average of values, `key`, `value` [B,T,D] → [B,T,D] (Peng et al. 2023, equation 16)."""
    decay = -torch.exp(time_decay)

    def step(state: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        above, below, top = state
        score, given = now
        most = torch.maximum(top, score + time_first)
        old, new = torch.exp(top - most), torch.exp(score + time_first - most)
        out = (old * above + new * given) / (old * below + new)
        most = torch.maximum(top + decay, score)
        old, new = torch.exp(top + decay - most), torch.exp(score - most)
        return (old * above + new * given, old * below + new, most), out

    zero = torch.zeros_like(key[:, 0])
    first = (zero, zero.clone(), zero - 1e38)
    return _scan(step, first, (key.transpose(0, 1), value.transpose(0, 1))).transpose(0, 1), None


def linear_recurrence(
    self: Any, hidden_states: Tensor, recurrent_gate: Tensor, reset: Tensor, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """Griffin's linear recurrence h = a h + x, [B,T,D] → [B,T,D], from nothing at the first token."""

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        kept, given = now
        state = kept * state + given
        # Two outputs with one name are one too few for ONNX Runtime.
        return state, state[:, None].clone()

    inputs = ((recurrent_gate * ~reset).transpose(0, 1), hidden_states.transpose(0, 1))
    return _scan(step, torch.zeros_like(hidden_states[:, 0]), inputs).squeeze(2).transpose(0, 1), None


def matrix_memory(  # noqa: PLR0917
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The mLSTM's matrix memory, [B,H,T,D] → [B,H,T,V] (Beck et al. 2024, equations 19 to 27)."""
    eps = self.config.eps
    kept = functional.logsigmoid(fgate)

    def step(state: tuple[Tensor, ...], now: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        memory, normal, top = state
        asked, known, given, gate, keep = now
        most = torch.maximum(keep + top, gate)
        old, new = torch.exp(keep + top - most)[..., None], torch.exp(gate - most)[..., None]
        memory = old[..., None] * memory + new[..., None] * known[..., None] * given[..., None, :]
        normal = old * normal + new * known
        below = torch.maximum((asked * normal).sum(-1).abs(), torch.exp(-most)) + eps
        return (memory, normal, most), (asked[..., None] * memory).sum(-2) / below[..., None]

    asked = query * query.shape[-1] ** -0.5
    memory = query.new_zeros(*query.shape[:2], query.shape[-1], value.shape[-1])
    first = (memory, torch.zeros_like(query[:, :, 0]), torch.zeros_like(igate[:, :, 0]))
    inputs = tuple(part.movedim(2, 0) for part in (asked, key, value, igate, kept))
    return _scan(step, first, inputs).movedim(0, 2), None


def lightning_attention(
    self: Any, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None, *args: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    """MiniMax's lightning attention S = exp(-s) S + k v, o = q S, [B,T,D] → [B,T,D] (Qin et al. 2024, equation 5)."""
    joined = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        joined = joined * attention_mask[..., None]
    inputs = joined.unflatten(-1, (self.num_attention_heads, -1)).transpose(0, 1).split(self.head_dim, dim=-1)
    kept = torch.exp(-self.slope_rate)

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        asked, known, given = now
        state = kept * state + known[..., None] * given[..., None, :]
        return state, (asked[..., None] * state).sum(-2)

    first = joined.new_zeros(joined.shape[0], self.num_attention_heads, self.head_dim, self.head_dim)
    found = _scan(step, first, tuple(inputs)).transpose(0, 1).flatten(2)
    return self.out_proj(torch.sigmoid(self.output_gate(hidden_states)) * self.norm(found)), None


_LOOP = "a Python loop over the tokens; can go when transformers writes it as a scan"
_CHUNKS = "a Python loop over chunks of tokens; can go when transformers writes it as a scan"

PATCHES = [
    Patch(
        "mamba_selective_scan",
        tuple(f"{name}.modeling_{name}" for name in ("mamba", "falcon_mamba", "jamba", "zamba")),
        selective_scan,
        _LOOP,
    ),
    Patch(
        "torch_chunk_gated_delta_rule",
        tuple(
            f"{name}.modeling_{name}"
            for name in ("lara_mini", "olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen4_exp")
        ),
        delta_rule,
        _CHUNKS,
    ),
    Patch(
        "chunk_kimi_delta_attention",
        ("bailing_hybrid.modeling_bailing_hybrid", "kimi_linear.modeling_kimi_linear"),
        delta_rule,
        _CHUNKS,
    ),
    Patch("rwkv_linear_attention", ("rwkv.modeling_rwkv",), wkv, _LOOP),
    Patch("RecurrentGemmaRglru._rnn_scan", ("recurrent_gemma.modeling_recurrent_gemma",), linear_recurrence, _LOOP),
    Patch("MiniMaxLightningAttention.forward", ("minimax.modeling_minimax",), lightning_attention, _CHUNKS),
    Patch("xLSTMBackend.forward", ("xlstm.modeling_xlstm",), matrix_memory, _CHUNKS),
]

"""Comparing logits and streams without regard to their scale."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


def relative(reference: torch.Tensor, other: torch.Tensor) -> float:
    """max|a-b| / max|a|; infinite if anything is NaN or infinite."""
    return _ratio(float((reference - other).abs().max()), float(reference.abs().max()))


def _ratio(difference: float, scale: float) -> float:
    if not (math.isfinite(difference) and math.isfinite(scale)):
        return math.inf
    return difference / scale if scale else float(difference > 0)


@dataclass
class Scores:
    """Agreement of logits over cells, a cell being one (layer, position).

    Attributes:
        cells: how many were compared.
        strict: cells whose top-1 is the same token.
        near: cells whose top-1 is the same, or nearly ties with it in the reference.
        kl_sum, kl_max: KL(reference || other), in nats.
        rel: the largest relative error of any call's logits.
        max_diff: the largest |difference| of any logit.
        max_abs: the largest |logit| of the reference.
    """

    cells: int = 0
    strict: int = 0
    near: int = 0
    kl_sum: float = 0.0
    kl_max: float = 0.0
    rel: float = 0.0
    max_diff: float = 0.0
    max_abs: float = 0.0

    def add(self, reference: torch.Tensor, other: torch.Tensor, near_tie: float, with_kl: bool = True) -> None:
        """Compare the logits of some cells.

        Args:
            reference: [N,V] float32, from torch.
            other: [N,V] float32, from the graph.
            near_tie: two tokens tie if their reference logits differ by at most this share of the cell's max|logit|.
            with_kl: whether to measure the KL too, which costs more than all the rest.
        """
        shift = other - reference
        scale = reference.abs().amax(-1)
        difference = float(shift.abs().max())
        self.cells += len(reference)
        self.max_abs = max(self.max_abs, float(scale.max()))
        self.rel = max(self.rel, _ratio(difference, float(scale.max())))
        if not math.isfinite(difference):
            self.kl_max = self.kl_sum = self.max_diff = math.inf
            return
        self.max_diff = max(self.max_diff, difference)
        best, mine = reference.argmax(-1), other.argmax(-1)
        gap = (reference.gather(-1, best[:, None]) - reference.gather(-1, mine[:, None])).squeeze(-1)
        self.strict += int((best == mine).sum())
        self.near += int((gap <= near_tie * scale).sum())
        if not with_kl:
            return
        kl = divergence(reference, shift)
        self.kl_sum += float(kl.sum())
        self.kl_max = max(self.kl_max, float(kl.max()))

    def as_json(self) -> dict:
        """For the report; shares, not counts."""
        return {
            "cells": self.cells,
            "top1": self.near / self.cells,
            "top1_strict": self.strict / self.cells,
            "kl_mean": self.kl_sum / self.cells,
            "kl_max": self.kl_max,
            "logits_rel": self.rel,
            "logits_max_diff": self.max_diff,
            "logits_max_abs": self.max_abs,
        }


def divergence(reference: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """KL(reference || reference + shift) of each row of logits [N,V], in nats.

    With d the shift, KL = log E[e^d] - E[d] under the reference's softmax: two sums of small terms in place of a
    difference of two large ones, so that float32 resolves values far below 1e-7.
    """
    shares = reference.softmax(-1)
    mean = (shares * shift).sum(-1, keepdim=True)
    centred = shift - mean
    # log E[e^c] with E[c] = 0; expm1 keeps the small terms, and subtracting c again leaves those of second order.
    close = torch.log1p(torch.expm1(centred).sub_(centred).mul_(shares).sum(-1)).clamp_min(0)
    if centred.max() < 1:
        return close
    # Where the two are far apart, e^c may overflow and nothing cancels.
    far = (reference + shift).logsumexp(-1) - reference.logsumexp(-1) - mean.squeeze(-1)
    return torch.where(centred.amax(-1) < 1, close, far)


def total(parts: list[Scores]) -> Scores:
    """The scores of several layers as one."""
    return Scores(
        cells=sum(p.cells for p in parts),
        strict=sum(p.strict for p in parts),
        near=sum(p.near for p in parts),
        kl_sum=sum(p.kl_sum for p in parts),
        kl_max=max(p.kl_max for p in parts),
        rel=max(p.rel for p in parts),
        max_diff=max(p.max_diff for p in parts),
        max_abs=max(p.max_abs for p in parts),
    )

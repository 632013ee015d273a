"""Finding the blocks with hooks: which modules the residual stream passes, in the order it passes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import PreTrainedModel

from stages.command import Refusal

BATCH, TOKENS = 2, 5


@dataclass(frozen=True)
class Call:
    """One call of a block."""

    name: str
    shape: tuple[int, ...]
    is_tuple: bool


@dataclass(frozen=True)
class Anatomy:
    """Where the residual stream of a model runs.

    Attributes:
        path: the list that holds the blocks, such as `model.layers`.
        calls: the names of the blocks in call order; each call is a layer.
        is_tuple: whether a block returns its stream as the first of a tuple.
        hidden_size: the width of the stream.
        after: the leaf modules that run after the last block, as `norm: LlamaRMSNorm`.
    """

    path: str
    calls: tuple[str, ...]
    is_tuple: bool
    hidden_size: int
    after: tuple[str, ...]

    def describe(self) -> str:
        """What was found, in plain words."""
        head = " > ".join(self.after)
        return f"{len(self.calls)} calls of {self.path}, stream [B,T,{self.hidden_size}], then {head}"

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks of a model of this anatomy, in call order."""
        return [model.get_submodule(name) for name in self.calls]


def stream(output: Any) -> Any:
    """The hidden state in what a block returns."""
    return output[0] if isinstance(output, tuple) else output


@contextmanager
def hooked(modules: dict[str, nn.Module], hook: Callable) -> Iterator[None]:
    """Forward hooks `hook(name, module, output)` for the time of a block."""
    handles = [
        module.register_forward_hook(lambda mod, args, out, name=name: hook(name, mod, out))
        for name, module in modules.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _record(model: PreTrainedModel) -> list[tuple[str, nn.Module, Any]]:
    """Every module call of one forward, in the order in which they return."""
    seen: list[tuple[str, nn.Module, Any]] = []
    modules = {name: module for name, module in model.named_modules() if name}
    ids = torch.zeros((BATCH, TOKENS), dtype=torch.long)
    with hooked(modules, lambda name, module, out: seen.append((name, module, out))), torch.no_grad():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        except Exception as error:  # any forward of any type may fail in its own way without weights
            reason = " ".join(str(error).split())[:200]
            raise Refusal(f"{model.config.model_type}: its forward does not run without weights ({reason})") from None
    return seen


def find(model: PreTrainedModel) -> Anatomy:
    """The anatomy of a causal language model.

    Raises:
        Refusal: no list of blocks carries a stream [B,T,H], or two do and neither holds the other.
    """
    seen = _record(model)
    kind = model.config.model_type
    lists = [name for name, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    streams: dict[str, list[Call]] = {}
    for name, _, output in seen:
        parent, _, index = name.rpartition(".")
        value = stream(output)
        if parent in lists and index.isdigit() and isinstance(value, torch.Tensor):
            streams.setdefault(parent, []).append(Call(name, tuple(value.shape), isinstance(output, tuple)))
    carrying = {
        path: calls
        for path, calls in streams.items()
        if all(len(c.shape) == 3 and c.shape == calls[0].shape and c.shape[:2] == (BATCH, TOKENS) for c in calls)
    }
    outer = [path for path in carrying if not any(path.startswith(f"{other}.") for other in carrying)]
    if not outer:
        raise Refusal(f"{kind}: no list of blocks that carries a stream [batch, tokens, hidden] was found")
    if len(outer) > 1:
        raise Refusal(f"{kind}: two lists of blocks look alike ({', '.join(outer)}): no single residual stream")
    path = outer[0]
    calls = carrying[path]
    last = max(index for index, (name, _, _) in enumerate(seen) if name == calls[-1].name)
    after = tuple(
        f"{name.rpartition('.')[2]}: {type(module).__name__}"
        for name, module, _ in seen[last + 1 :]
        if not list(module.children())
    )
    return Anatomy(path, tuple(c.name for c in calls), calls[0].is_tuple, calls[0].shape[-1], after)

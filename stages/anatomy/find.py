"""Finding the blocks with hooks: which modules the residual stream passes, in the order it passes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from stages.command import Refusal
from stages.graph.limits import MESSAGE_LIMIT

# Two numbers that no width, head count or multiplicity is likely to have next to each other.
BATCH, TOKENS = 3, 11
# Of several lists that a stream runs through side by side, the blocks hold nearly all weights.
MOST = 0.8


@dataclass(frozen=True)
class Call:
    """One call of a block: the shape of what it returned first, and how many values it returned in a tuple."""

    name: str
    shape: tuple[int, ...]
    tuple_size: int


@dataclass(frozen=True)
class Anatomy:
    """Where the residual stream of a model runs.

    Attributes:
        path: the list that holds the blocks, such as `model.layers`.
        calls: the names of the blocks in call order; each call is a layer.
        tuple_size: how many values a block returns, its stream first; 0 if it returns the stream alone.
        shape: a stream as a block returns it, with "B" and "T" for its batch and its tokens: `("B", "T", 64)`, and
            for several streams side by side `("B", "T", 4, 64)` or `(4, "B", "T", 64)`.
        after: the leaf modules that run after the last block, as `norm: LlamaRMSNorm`.
    """

    path: str
    calls: tuple[str, ...]
    tuple_size: int
    shape: tuple[int | str, ...]
    after: tuple[str, ...]

    @property
    def hidden_size(self) -> int:
        """The width of the stream; streams side by side are one wide stream."""
        return math.prod(size for size in self.shape if isinstance(size, int))

    def describe(self) -> str:
        """What was found, in plain words."""
        shape = ",".join(map(str, self.shape))
        return f"{len(self.calls)} calls of {self.path}, stream [{shape}], then {' > '.join(self.after) or 'nothing'}"

    def as_json(self) -> dict:
        """For anatomy.json."""
        return asdict(self) | {"hidden_size": self.hidden_size, "num_layers": len(self.calls)}

    @classmethod
    def from_json(cls, value: dict) -> Anatomy:
        """What `as_json` wrote."""
        lists = {name: tuple(value[name]) for name in ("calls", "shape", "after")}
        return cls(path=value["path"], tuple_size=value["tuple_size"], **lists)

    def blocks(self, model: nn.Module) -> list[nn.Module]:
        """The blocks of a model of this anatomy, in call order."""
        return [model.get_submodule(name) for name in self.calls]

    def flat(self, stream: torch.Tensor) -> torch.Tensor:
        """A stream as [B,T,H]."""
        lead = self.shape.index("B")
        axes = [lead, lead + 1, *(axis for axis in range(stream.dim()) if axis not in (lead, lead + 1))]
        return stream.permute(axes).flatten(2)

    def unflat(self, rows: torch.Tensor) -> torch.Tensor:
        """A stream [B,T,H] in the shape in which blocks return it."""
        lead = self.shape.index("B")
        wide = rows.unflatten(2, [size for size in self.shape if isinstance(size, int)])
        return wide.permute([*range(2, 2 + lead), 0, 1, *range(2 + lead, wide.dim())])


def first_tensor(value: Any) -> Any:
    """The hidden state in what a block returns: itself, or the first of a tuple."""
    return value[0] if isinstance(value, tuple | list) and value else value


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
            model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        except Exception as error:  # any forward of any type may fail in its own way on ids and a mask alone
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise Refusal(f"{model.config.model_type}: its forward does not run on ids and a mask ({reason})") from None
    return seen


def _stream_shape(shape: tuple[int, ...]) -> tuple[int | str, ...] | None:
    """A tensor's shape with its batch and tokens named, or None if it is no stream."""
    for axis in range(len(shape) - 2):
        if shape[axis : axis + 2] == (BATCH, TOKENS):
            return (*shape[:axis], "B", "T", *shape[axis + 2 :])
    return None


def _candidates(model: PreTrainedModel, seen: list[tuple[str, nn.Module, Any]]) -> dict[str, list[Call]]:
    """By list, the calls of its modules, for lists of which every call returns a stream of the same shape."""
    lists = {name for name, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)}
    calls: dict[str, list[Call]] = {}
    for name, _, output in seen:
        parent, _, index = name.rpartition(".")
        value = first_tensor(output)
        if parent in lists and index.isdigit() and isinstance(value, torch.Tensor):
            calls.setdefault(parent, []).append(
                Call(name, tuple(value.shape), len(output) if isinstance(output, tuple | list) else 0)
            )
    return {
        path: found
        for path, found in calls.items()
        if _stream_shape(found[0].shape) and all(call.shape == found[0].shape for call in found)
    }


def _choose(model: PreTrainedModel, candidates: dict[str, list[Call]]) -> str:
    """The outermost list; of several, the one with nearly all weights."""
    kind = model.config.model_type
    outer = [path for path in candidates if not any(path.startswith(f"{other}.") for other in candidates)]
    if not outer:
        raise Refusal(f"{kind}: no list of blocks that carries a stream [batch, tokens, hidden] was found")
    weights = {path: sum(p.numel() for p in model.get_submodule(path).parameters()) for path in outer}
    largest = max(outer, key=lambda path: weights[path])
    if weights[largest] < MOST * sum(weights.values()):
        raise Refusal(f"{kind}: lists of blocks look alike ({', '.join(outer)}): name one as `blocks` in params.yaml")
    return largest


def check_fits(model: PreTrainedModel, anatomy: Anatomy) -> None:
    """Refuse a backbone that one ONNX file can't hold, before it is given weights.

    Raises:
        Refusal: with the size that it would have as float16.
    """
    parts = [*anatomy.blocks(model), model.get_input_embeddings()]
    weights = {id(weight): weight.numel() for part in parts for weight in part.parameters()}
    size = 2 * sum(weights.values())
    if size > MESSAGE_LIMIT:
        raise Refusal(
            f"{model.config.model_type}: the backbone has {size / 1e9:.1f} GB as float16, more than the 2.1 GB that "
            "one ONNX file can hold: take a smaller model"
        )


def find(model: PreTrainedModel, path: str | None = None) -> Anatomy:
    """The anatomy of a causal language model.

    Args:
        model: with any weights.
        path: the list that holds the blocks, where it can't be found.

    Raises:
        Refusal: no list of blocks carries a stream, or two do and neither holds the other.
    """
    seen = _record(model)
    candidates = _candidates(model, seen)
    if path is not None and path not in candidates:
        raise Refusal(
            f"{model.config.model_type}: blocks: {path} is not a list of blocks that carries a stream "
            f"(found: {', '.join(candidates) or 'none'})"
        )
    path = path or _choose(model, candidates)
    calls = candidates[path]
    last = max(index for index, (name, _, _) in enumerate(seen) if name == calls[-1].name)
    after = tuple(
        f"{name.rpartition('.')[2]}: {type(module).__name__}"
        for name, module, _ in seen[last + 1 :]
        if not list(module.children())
    )
    return Anatomy(path, tuple(c.name for c in calls), calls[0].tuple_size, _stream_shape(calls[0].shape), after)

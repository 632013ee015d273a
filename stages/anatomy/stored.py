"""How a model's weights are called, cut and laid in the files that transformers writes of it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from stages.command import Refusal


class _Views(TorchFunctionMode):
    """Keeps slices what they are, views, and remembers what was joined.

    Attributes:
        joined: by the address of a joined tensor, the tensor and its parts: `(part, its place in the whole)`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.joined: dict[int, tuple[torch.Tensor, list[tuple[torch.Tensor, torch.Tensor]]]] = {}

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is torch.Tensor.contiguous:
            return args[0]
        result = func(*args, **(kwargs or {}))
        if func is torch.cat:
            axis = (kwargs or {}).get("dim", args[1] if len(args) > 1 else 0)
            places = torch.split(result, [part.shape[axis] for part in args[0]], axis)
            self.joined[_address(result)] = result, list(zip(args[0], places, strict=True))
        return result


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _place(tensor: torch.Tensor) -> list[int]:
    """Where a view lies in its storage: offset, then strides, in elements."""
    return [tensor.storage_offset(), *tensor.stride()]


def _pieces(name: str, stored: torch.Tensor, views: _Views) -> list[tuple[int, dict]]:
    """What a file's tensor gives to which parameter, the parameter by its address."""
    parts = views.joined[_address(stored)][1] if _address(stored) in views.joined else [(stored, None)]
    found = []
    for part, place in parts:
        # A tensor of a file is contiguous, whatever the view is that would be written into it.
        inside = torch.empty(part.shape, device="meta") if place is None else place
        piece = {"shape": list(stored.shape), "sizes": list(part.shape), "from": _place(inside), "to": _place(part)}
        found.append((_address(part), {"name": name} | piece))
    return found


def _is_whole(piece: dict, tensor: torch.Tensor) -> bool:
    return piece["shape"] == list(tensor.shape) and piece["from"] == piece["to"] == _place(tensor)


def _variants(name: str, prefix: str) -> list[str]:
    """A name, and the same with or without the base model's prefix: files have it or not."""
    bare = name.removeprefix(prefix)
    return [name, bare if bare != name else prefix + name]


def parameters(model: PreTrainedModel) -> dict[str, dict]:
    """What a checkpoint of this model must hold.

    Returns:
        By the name of the parameter or saved buffer: `{"shape", "whole", "names", "pieces"}`; `whole` if it is a table
        of whole numbers; the names are those that files may use for it, the likeliest first; tied weights are one
        entry with the names of all.
        Pieces are what files hold in its place if it is cut up or joined with others in them (experts, fused
        projections): `{"names", "shape", "sizes", "from", "to"}`, where the elements `from` of a tensor of that
        shape go `to` the parameter, both as an offset and strides over `sizes`, in elements.

    Raises:
        Refusal: transformers stores a weight in a form from which it can't be put together.
    """
    prefix = f"{model.base_model_prefix}."
    state = model.state_dict(keep_vars=True)
    groups: dict[int, list[str]] = {}
    for name, tensor in state.items():
        groups.setdefault(_address(tensor), []).append(name)
    with torch.no_grad(), _Views() as views:
        stored = revert_weight_conversion(model, {name: tensor.detach() for name, tensor in state.items()})
    pieces: dict[int, list[dict]] = {}
    for name, tensor in stored.items():
        for address, piece in _pieces(name, tensor, views):
            pieces.setdefault(address, []).append(piece)
    lost = [names[0] for address, names in groups.items() if address not in pieces]
    if lost:
        kind = model.config.model_type
        raise Refusal(f"{kind}: transformers stores {lost[0]} in a form from which it can't be put together here")
    found = {}
    for address, names in groups.items():
        tensor, mine = state[names[0]], pieces[address]
        whole = [piece["name"] for piece in mine if _is_whole(piece, tensor)]
        candidates = [variant for name in [*whole, *names] for variant in _variants(name, prefix)]
        parts = [] if whole else [_named(piece, prefix) for piece in mine]
        found[names[0]] = {
            "shape": list(tensor.shape),
            "whole": not tensor.is_floating_point(),
            "names": list(dict.fromkeys(candidates)),
            "pieces": parts,
        }
    return found


def _named(piece: dict, prefix: str) -> dict:
    rest = {key: value for key, value in piece.items() if key != "name"}
    return {"names": _variants(piece["name"], prefix)} | rest


def canonical_names(model: nn.Module) -> dict[str, str]:
    """For every name in the state dict, the first name of its tied group."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in model.state_dict(keep_vars=True).items()}

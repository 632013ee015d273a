"""Putting a parameter together from the tensors of a file that hold it in pieces."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np


def view(flat: np.ndarray, place: list[int], sizes: list[int]) -> np.ndarray:
    """A strided view of a one-dimensional array.

    Args:
        flat: the array.
        place: offset and strides, in elements.
        sizes: the shape of the view.
    """
    offset, *strides = place
    if not sizes or not math.prod(sizes):
        return flat[offset : offset + math.prod(sizes)].reshape(sizes)
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    assert min(strides) >= 0 and last < flat.size, "a piece reaches beyond its tensor"
    steps = [stride * flat.itemsize for stride in strides]
    return np.lib.stride_tricks.as_strided(flat[offset:], sizes, steps)


def assemble(shape: list[int], pieces: list[dict], read: Callable[[str], np.ndarray]) -> np.ndarray:
    """A parameter from its pieces.

    Args:
        shape: of the parameter.
        pieces: `{"name", "sizes", "from", "to"}` each, that together cover it.
        read: gives a tensor of the file by its name.
    """
    whole: np.ndarray | None = None
    for piece in pieces:
        array = read(piece["name"])
        if whole is None:
            whole = np.empty(math.prod(shape), array.dtype)
        source = view(np.ascontiguousarray(array).reshape(-1), piece["from"], piece["sizes"])
        view(whole, piece["to"], piece["sizes"])[...] = source
    return whole.reshape(shape)

"""The tensors of a checkpoint: an index over its safetensors files, read one at a time."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from stages.command import Refusal

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.safetensors")


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def weight_files(folder: Path) -> list[str]:
    """The names of the weight files that a checkpoint folder promises, index included.

    Raises:
        Refusal: there are none that are read here, or the index is no index or points out of the folder.
    """
    if (folder / INDEX).exists():
        try:
            shards = sorted(set(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Refusal(f"{folder / INDEX} is not an index of shards (no weight_map)") from None
        outside = [name for name in shards if not SHARD.fullmatch(str(name))]
        if outside:
            raise Refusal(f"{folder / INDEX} names {outside[0]!r}: expected a .safetensors file beside it")
        return [INDEX, *shards]
    if (folder / SINGLE).exists():
        return [SINGLE]
    pickles = sorted(path.name for path in folder.glob("*.bin"))
    found = f"; only {', '.join(pickles[:3])}, a pickle, which is not read" if pickles else ""
    raise Refusal(f"no weights in {folder} (looked for {SINGLE} and {INDEX}{found})")


def _header(path: Path) -> dict[str, Entry]:
    """The tensors of one file. safetensors itself checks offsets, overlaps and the file's length first."""
    try:
        with safe_open(path, "np") as opened:
            opened.keys()
    except FileNotFoundError:
        raise Refusal(f"{path} is missing though the index names it") from None
    except (SafetensorError, OSError) as error:
        size = path.stat().st_size if path.exists() else 0
        raise Refusal(f"{path} ({size} bytes) is cut short or is not safetensors: {error}") from None
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
    base = 8 + length
    return {
        name: Entry(path, item["dtype"], tuple(item["shape"]), *(base + at for at in item["data_offsets"]))
        for name, item in header.items()
        if name != "__metadata__"
    }


def open_weights(folder: Path) -> dict[str, Entry]:
    """Every tensor of a checkpoint by the name it has in its file.

    Raises:
        Refusal: no weights, a missing or cut shard, a tensor that the index promises and its shard lacks.
    """
    names = weight_files(folder)
    tensors: dict[str, Entry] = {}
    for name in names:
        if name != INDEX:
            tensors |= _header(folder / name)
    if names[0] == INDEX:
        promised = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        lacking = [t for t, shard in promised.items() if t not in tensors or tensors[t].file.name != shard]
        if lacking:
            raise Refusal(f"{folder / INDEX} promises {listed(lacking)}, and the shards lack them")
    return tensors


def read(entry: Entry) -> np.ndarray:
    """One tensor as it is stored; a copy of its own, so that memory holds one tensor and not the file.

    Raises:
        Refusal: the dtype is not one of float64, float32, float16, bfloat16.
    """
    if entry.dtype not in DTYPES:
        raise Refusal(
            f"a tensor in {entry.file.name} is stored as {entry.dtype}: expected {', '.join(DTYPES)}; "
            "quantised weights must be dequantised first"
        )
    dtype = np.dtype(DTYPES[entry.dtype])
    array = np.fromfile(entry.file, dtype=dtype, count=math.prod(entry.shape), offset=entry.start)
    return array.reshape(entry.shape)


def tensor_digest(array: np.ndarray) -> str:
    """sha256 over a tensor's bytes, in hex."""
    return hashlib.sha256(array.reshape(-1).view(np.uint8).data).hexdigest()


def largest(array: np.ndarray) -> float:
    """Max |x|; NaN or infinite if any element is."""
    if not array.size:
        return 0.0
    wide = array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array
    return float(max(-wide.min(), wide.max()))


def in_file_order(tensors: dict[str, Entry]) -> Iterator[tuple[str, Entry]]:
    """All tensors as they lie on the disk."""
    return iter(sorted(tensors.items(), key=lambda item: (item[1].file.name, item[1].start)))


def listed(names: list[str], most: int = 3) -> str:
    """The first few names and how many more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more

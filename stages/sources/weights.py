"""The tensors of a checkpoint: an index over its weight files, read one at a time."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
import zipfile
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from stages.command import Refusal
from stages.files import read_json
from stages.sources.names import inside, is_name

ADAPTER = "adapter_config.json"
FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
# Tables, such as which experts read which token; a quantised weight has a narrower type.
WHOLE = {"I64": np.int64, "I32": np.int32}
DTYPES = FLOATS | WHOLE
# One file or an index of shards, in the order in which transformers looks for them.
SAFE = ("model.safetensors", "model.safetensors.index.json", ".safetensors")
PICKLED = ("pytorch_model.bin", "pytorch_model.bin.index.json", ".bin")


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: in `file` from byte `start` on, or, read from a pickle, in memory as `tensor`."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int = 0
    tensor: Any = None


def adapter_alone(names: Collection[str], where: str) -> str | None:
    """What to say of a folder that holds an adapter and no model; None for any other."""
    if ADAPTER not in names or any(name in names for kind in (SAFE, PICKLED) for name in kind[:2]):
        return None
    return f"{where} holds an adapter without its model: merge the two first, as with peft's merge_and_unload()"


def choose(names: Collection[str], load: Callable[[str], Any], where: str, allow_pickle: bool = False) -> list[str]:
    """Which files of a folder hold its weights, an index first.

    Args:
        names: the names of the folder's files.
        load: reads an index by its name.
        where: what people call the folder.
        allow_pickle: whether pickles will do where there are no safetensors.

    Raises:
        Refusal: there are none that are read here, or the index is no index, points out of the folder or promises
            shards that aren't there.
    """
    for single, index, ending in (SAFE, PICKLED) if allow_pickle else (SAFE,):
        if single in names:
            return [single]
        if index in names:
            shards = _shards(load(index), f"{where}/{index}", ending)
            absent = [shard for shard in shards if shard not in names]
            if absent:
                raise Refusal(f"{where} lacks {listed(absent)}, which {index} promises")
            return [index, *shards]
    pickles = sorted(name for name in names if name.startswith("pytorch_model") and name.endswith(PICKLED[2]))
    found = f"; only {listed(pickles)}, a pickle, read only with allow_pickle: true in its source" if pickles else ""
    looked = PICKLED[:2] if allow_pickle else ()
    raise Refusal(f"no weights in {where} (looked for {', '.join([*SAFE[:2], *looked])}{found})")


def _shards(index: Any, where: str, ending: str) -> list[str]:
    try:
        shards = sorted(set(index["weight_map"].values()))
    except (KeyError, TypeError, AttributeError):
        raise Refusal(f"{where} is not an index of shards (no weight_map)") from None
    outside = [name for name in shards if not is_name(name) or not name.endswith(ending)]
    if outside or not shards:
        raise Refusal(f"{where} names {outside[0] if outside else None!r}: expected a {ending} file beside it")
    return shards


def weight_files(folder: Path, allow_pickle: bool = False) -> list[str]:
    """The names of the weight files of a checkpoint folder, an index first; raises as `choose`."""
    names = {path.name for path in folder.iterdir() if path.is_file()}
    return choose(names, lambda name: _json(folder / name), str(folder), allow_pickle)


def _json(path: Path) -> Any:
    try:
        return read_json(path)
    except ValueError:
        raise Refusal(f"{path} is not JSON") from None


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
        name: Entry(path, item["dtype"], tuple(item["shape"]), base + item["data_offsets"][0])
        for name, item in header.items()
        if name != "__metadata__"
    }


def open_weights(folder: Path, allow_pickle: bool = False) -> dict[str, Entry]:
    """Every tensor of a checkpoint by the name it has in its file.

    Raises:
        Refusal: no weights, a missing or cut shard, a tensor that the index promises and its shard lacks.
    """
    index, *shards = names = weight_files(folder, allow_pickle)
    tensors: dict[str, Entry] = {}
    for name in shards or names:
        path = inside(folder / name, folder)
        tensors |= open_pickle(path) if name.endswith(PICKLED[2]) else _header(path)
    if shards:
        promised = _json(folder / index)["weight_map"]
        lacking = [t for t, shard in promised.items() if t not in tensors or tensors[t].file.name != shard]
        if lacking:
            raise Refusal(f"{folder / index} promises {listed(lacking)}, and the shards lack them")
    return tensors


def open_pickle(path: Path) -> dict[str, Entry]:
    """The tensors of a pickle, read with torch's loader for weights alone, which runs no code from the file.

    Files of torch 1.6 and later stay on the disk until a tensor is read; older ones are read whole.

    Raises:
        Refusal: it is cut short, or holds anything but tensors by name.
    """
    import torch

    try:
        with warnings.catch_warnings(action="ignore"):
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except Exception as error:  # torch raises a dozen kinds for what it can't or won't read
        # torch says its reason last, after advice to load without protection.
        lines = str(error).partition("WeightsUnpickler error:")[2].split("\n") or [""]
        why = next((line.strip() for line in lines if line.strip()), type(error).__name__)
        raise Refusal(f"{path} is not read: it is damaged or holds more than tensors ({why.rstrip('.')})") from None
    if not isinstance(state, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in state.values()):
        raise Refusal(f"{path} is not read: expected tensors by name, and nothing else")
    kinds = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
    kinds |= {torch.int64: "I64", torch.int32: "I32"}
    return {
        name: Entry(path, kinds.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), tensor=tensor)
        for name, tensor in state.items()
    }


def read(entry: Entry) -> np.ndarray:
    """One tensor as it is stored; a copy of its own, so that memory holds one tensor and not the file.

    Raises:
        Refusal: the dtype is not one of float64, float32, float16, bfloat16, or int64 and int32 of tables.
    """
    if entry.dtype not in DTYPES:
        raise Refusal(
            f"a tensor in {entry.file.name} is stored as {entry.dtype}: expected {', '.join(FLOATS)}; "
            "quantised weights must be dequantised first"
        )
    dtype = np.dtype(DTYPES[entry.dtype])
    if entry.tensor is not None:
        return entry.tensor.contiguous().view(_carrier(dtype.itemsize)).numpy().view(dtype).copy()
    array = np.fromfile(entry.file, dtype=dtype, count=math.prod(entry.shape), offset=entry.start)
    return array.reshape(entry.shape)


def _carrier(size: int) -> Any:
    """The torch dtype of so many bytes that numpy has too, which it lacks for bfloat16."""
    import torch

    return {8: torch.int64, 4: torch.int32, 2: torch.int16}[size]


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

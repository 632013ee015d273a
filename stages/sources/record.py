"""checkpoint.json: what a checkpoint is. Later stages open the weights through it, wherever they lie."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stages.command import Refusal
from stages.files import canonical, checkpoint_folder, plan_file, read_json
from stages.sources.kinds import open_source
from stages.sources.pieces import assemble
from stages.sources.weights import (
    PICKLED,
    WHOLE,
    Entry,
    in_file_order,
    largest,
    listed,
    open_weights,
    read,
    tensor_digest,
)


def match(parameters: dict, tensors: dict[str, Entry]) -> tuple[dict[str, str | list[dict]], list[str]]:
    """Which stored tensor, or which pieces of several, fill which parameter.

    Args:
        parameters: by name, `{"shape", "whole", "names", "pieces"}`: what the architecture has, and how files hold it;
            `whole` where it is a table of whole numbers.
        tensors: what the checkpoint has.

    Returns:
        By parameter the stored name, or the pieces as `{"name", "sizes", "from", "to"}`; and the stored names that
        fill none.

    Raises:
        Refusal: tensors that are missing, of another shape or of another kind, all at once.
    """
    chosen: dict[str, str | list[dict]] = {}
    absent, wrong, other, used = [], [], [], set()
    for name, parameter in parameters.items():
        found = [candidate for candidate in parameter["names"] if candidate in tensors]
        if found:
            chosen[name] = found[0]
            wanted = [(stored, parameter["shape"]) for stored in found]
        else:
            parts = [_present(piece, tensors) for piece in parameter["pieces"]]
            absent += [part["names"][0] for part in parts if part["name"] is None] if parts else [name]
            chosen[name] = [{key: part[key] for key in ("name", "sizes", "from", "to")} for part in parts]
            wanted = [(part["name"], part["shape"]) for part in parts if part["name"]]
        used |= {stored for stored, _ in wanted}
        shapes = [(stored, list(tensors[stored].shape), shape) for stored, shape in wanted]
        wrong += [f"{stored} {found} (expected {shape})" for stored, found, shape in shapes if found != shape]
        kinds = [(stored, tensors[stored].dtype) for stored, _ in wanted]
        other += [f"{stored} {dtype}" for stored, dtype in kinds if (dtype in WHOLE) != parameter["whole"]]
    problems = [f"{len(absent)} missing: {listed(absent)}"] if absent else []
    problems += [f"{len(wrong)} of another shape: {listed(wrong)}"] if wrong else []
    problems += [f"{len(other)} of another kind of number: {listed(other)}"] if other else []
    if problems:
        raise Refusal(f"the weights don't fit the config; of {len(parameters)} tensors " + "; ".join(problems))
    return chosen, sorted(set(tensors) - used)


def _present(piece: dict, tensors: dict[str, Entry]) -> dict:
    return piece | {"name": next((name for name in piece["names"] if name in tensors), None)}


def stored_names(chosen: str | list[dict]) -> list[str]:
    """The tensors of a file that fill a parameter."""
    return [chosen] if isinstance(chosen, str) else list(dict.fromkeys(piece["name"] for piece in chosen))


def examine(tensors: dict[str, Entry], kept: set[str]) -> dict[str, dict]:
    """Read every tensor once: dtype, shape, digest, largest value.

    Raises:
        Refusal: NaN or infinite values in a tensor of `kept`.
    """
    facts, bad = {}, []
    for name, entry in in_file_order(tensors):
        if name not in kept:
            facts[name] = {"file": entry.file.name, "dtype": entry.dtype, "shape": list(entry.shape)}
            continue
        array = read(entry)
        top = largest(array)
        if not np.isfinite(top):
            bad.append(name)
        facts[name] = {
            "file": entry.file.name,
            "dtype": entry.dtype,
            "shape": list(entry.shape),
            "max_abs": top if np.isfinite(top) else None,
            "sha256": tensor_digest(array),
        }
    if bad:
        raise Refusal(f"NaN or infinite weights in {len(bad)} tensors: {listed(bad)}")
    return dict(sorted(facts.items()))


def check_tied(parameters: dict, facts: dict[str, dict]) -> None:
    """Refuse a file that stores two different tensors for weights that the config ties."""
    for parameter in parameters.values():
        stored = [name for name in parameter["names"] if name in facts]
        if len({facts[name]["sha256"] for name in stored}) > 1:
            raise Refusal(f"the config ties {' and '.join(stored)}, but the file holds two different tensors")


def weight_digest(facts: dict[str, dict]) -> str:
    """One digest over all tensors, not over files: sharding does not change it."""
    rows = {name: [fact["dtype"], fact["shape"], fact["sha256"]] for name, fact in facts.items() if "sha256" in fact}
    return hashlib.sha256(canonical(rows)).hexdigest()


def same_weights(plan: dict, step: str, digest: str) -> str | None:
    """Another step that is fetched already, as the plan now pins it, and has this weight digest."""
    for other in plan["steps"]:
        file = checkpoint_folder(plan["model"], other) / "checkpoint.json"
        if other == step or not file.exists() or not plan["files"][other]:
            continue
        record = read_json(file)
        if record.get("weight_digest") == digest and record["files"] == plan["files"][other]:
            return other
    return None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as its record describes it, opened.

    Attributes:
        record: the content of checkpoint.json.
        folder: where the weights and config lie on this machine.
    """

    record: dict
    folder: Path
    _tensors: dict[str, Entry]

    @property
    def is_pickled(self) -> bool:
        """Whether the weights are read from pickles."""
        return any(file["name"].endswith(PICKLED[2]) for file in self.record["files"])

    def fact(self, parameter: str) -> dict:
        """`max_abs` of a parameter, from the record."""
        names = stored_names(self.record["parameters"][parameter])
        return {"max_abs": max(self.record["tensors"][name]["max_abs"] for name in names)}

    def read(self, parameter: str) -> np.ndarray:
        """A parameter, as it is stored; put together if it is stored in pieces.

        Raises:
            Refusal: its bytes are not those that the record names.
        """
        chosen = self.record["parameters"][parameter]
        if isinstance(chosen, str):
            return self._read(chosen)
        return assemble(self.record["shapes"][parameter], chosen, self._read)

    def _read(self, stored: str) -> np.ndarray:
        array = read(self._tensors[stored])
        if tensor_digest(array) != self.record["tensors"][stored]["sha256"]:
            raise Refusal(f"{stored} in {self.folder} is not what was fetched: run `make plan`, then `make repro`")
        return array


def open_checkpoint(model: str, step: str) -> Checkpoint:
    """Open a fetched checkpoint through its record; weights that are no longer on this machine are brought back.

    Raises:
        Refusal: the checkpoint was rejected, its weights can't be brought back, or they changed.
    """
    try:
        record = read_json(checkpoint_folder(model, step) / "checkpoint.json")
    except FileNotFoundError:
        raise Refusal(f"step {step} was not fetched: run `make repro`") from None
    if "rejected" in record:
        raise Refusal(record["rejected"])
    source = open_source(read_json(plan_file(model)))
    folder = source.at_hand(step) or source.bring(step)
    tensors = open_weights(folder, source.allow_pickle)
    needed = [name for chosen in record["parameters"].values() for name in stored_names(chosen)]
    gone = [
        name for name in needed if name not in tensors or list(tensors[name].shape) != record["tensors"][name]["shape"]
    ]
    if gone:
        raise Refusal(f"{folder} no longer holds {listed(gone)} as fetched: run `make plan`, then `make repro`")
    return Checkpoint(record, folder, tensors)

"""Where things lie, and how they get there: temporary name first, then a rename."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

DATA = Path("data")
TEMPORARY = DATA / "tmp"


def plan_file(model: str) -> Path:
    """The pinned plan of a model."""
    return Path("models") / model / "params.json"


def checkpoint_folder(model: str, step: str) -> Path:
    """The record of a checkpoint: checkpoint.json, config, tokenizer files."""
    return DATA / "checkpoints" / model / f"step{step}"


def graph_folder(model: str, half: str) -> Path:
    """A traced half (`backbone` or `lens`): graph.onnx without weights, weights.json."""
    return DATA / "graphs" / model / half


def pair_folder(model: str, step: str) -> Path:
    """The two ONNX files of a checkpoint."""
    return DATA / "onnx" / model / f"step{step}"


def fidelity_file(model: str, step: str) -> Path:
    """The measurements of a checkpoint's pair."""
    return DATA / "fidelity" / model / f"step{step}.json"


def manifest_file(model: str) -> Path:
    """What a client reads first."""
    return DATA / "onnx" / model / "manifest.json"


def metrics_file(model: str) -> Path:
    """A model's numbers, step by step, for `dvc metrics` and `dvc plots`."""
    return DATA / "metrics" / f"{model}.json"


def failure_file(model: str, stage: str, step: str | None) -> Path:
    """Why a stage refused, for the summary; gone when the stage succeeds."""
    return DATA / "failed" / model / f"{stage}{'' if step is None else f'.step{step}'}.json"


def sha256_file(path: Path) -> str:
    """The sha256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def canonical(value: Any) -> bytes:
    """JSON bytes that are the same for equal values; the base of every digest over JSON."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def read_json(path: Path) -> Any:
    """The JSON in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _sweep() -> None:
    """Remove what killed processes left behind; a living one may still be writing."""
    for path in TEMPORARY.glob("*.*"):
        pid = path.name.split(".", 1)[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def temporary(name: str) -> Iterator[Path]:
    """A path under data/tmp that is this process's own and is gone afterwards."""
    TEMPORARY.mkdir(parents=True, exist_ok=True)
    _sweep()
    path = TEMPORARY / f"{os.getpid()}.{name.replace(os.sep, '-')}"
    try:
        yield path
    finally:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill; it takes the target's place only if the block succeeds."""
    with temporary(str(target)) as path:
        path.mkdir()
        yield path
        if target.exists():
            shutil.rmtree(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)


def write_bytes(target: Path, content: bytes) -> None:
    """Write a whole file, or nothing."""
    with temporary(str(target)) as path:
        path.write_bytes(content)
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)


def json_text(value: Any) -> str:
    """JSON for people and for diffs: indented, a newline at the end."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file, or nothing."""
    write_bytes(target, json_text(value).encode())

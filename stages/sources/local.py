"""Checkpoints in folders on this machine."""

from __future__ import annotations

import re
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import RepoCard

from stages.command import Refusal
from stages.files import sha256_file
from stages.sources.base import CONFIG_FILE, Source
from stages.sources.names import inside
from stages.sources.pin import Digests, content_digest, short
from stages.sources.weights import adapter_alone, weight_files

DEMO_STEPS = (0, 8, 16, 32, 64, 128, 256, 512)
DEMO_RUN = Path("data/runs/demo")


class Local(Source):
    """What folders have in common: pinned by content, read where they lie."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.root = Path(self.spec["path"])
        self._digests = Digests()

    @property
    def title(self) -> str:
        """The folder, as it stands in params.yaml."""
        return str(self.root)

    def missing(self) -> str | None:
        """The folder is not there."""
        return None if self.root.is_dir() else f"{self.root} is not there (expected a folder)"

    def no_such_step(self, step: int) -> str:
        """With the first steps that are there."""
        whole, _ = self.steps()
        there = ", ".join(map(str, whole[:12])) + (" …" if len(whole) > 12 else "")
        return f"step {step} is not there (steps in {self.root}: {there or 'none'})"

    def folder(self, step: str) -> Path:
        """The folder of one checkpoint."""
        return self.root / self.locate(step)

    def listing(self, step: str) -> dict[str, dict]:
        """The files beside each other in the checkpoint's folder and in the run's."""
        places = {self.folder(step), self.root}
        files = (path for place in places if place.is_dir() for path in place.iterdir() if path.is_file())
        return {path.relative_to(self.root).as_posix(): {} for path in files}

    def promise(self, step: str, name: str) -> dict:
        """Size and sha256, remembered by the file's stat, so that a second plan reads no weights."""
        path = inside(self.root / name, self._home(step))
        return {"name": name, "bytes": path.stat().st_size, "sha256": self._digests.of(path)}

    def _home(self, step: str) -> Path:
        """What the files of a step may not leave: the run's folder, or a checkpoint folder that is itself a link."""
        folder = self.folder(step)
        return self.root if folder.resolve().is_relative_to(self.root.resolve()) else folder

    def small_file(self, step: str, name: str) -> Path:
        """Where it lies."""
        return inside(self.root / name, self._home(step))

    def revision(self, step: str, files: list[dict]) -> str:
        """A digest over the contents."""
        self._digests.save()
        return content_digest(files)

    def card(self, step: str) -> dict[str, Any]:
        """From the README beside the weights, if it is a model card."""
        found = next((p for p in (self.folder(step) / "README.md", self.root / "README.md") if p.is_file()), None)
        return read_card(inside(found, self._home(step))) if found else super().card(step)

    def top(self, step: str) -> Path:
        """The folder itself."""
        return self.root

    def at_hand(self, step: str) -> Path | None:
        """The folder itself."""
        folder = self.folder(step)
        return folder if (folder / CONFIG_FILE).is_file() else None

    def bring_code(self, step: str) -> Path:
        """The folder itself; who runs the code compares it with the plan."""
        return self.folder(step)

    def bring(self, step: str) -> Path:
        """The folder itself, every pinned file as it was.

        Raises:
            Refusal: a file is gone or changed since the plan.
        """
        folder = self.folder(step)
        for file in self.files[step]:
            if not (self.root / file["name"]).is_file():
                raise Refusal(f"{self.root / file['name']} is gone: put it back, or run `make plan`")
        now = content_digest([self._now(step, file["name"]) for file in self.files[step]])
        pinned = self.revisions[step]
        if now != pinned:
            raise Refusal(
                f"{folder} is {short(now)}, the plan has {short(pinned)}: run `make plan` to take the new one"
            )
        return folder

    def _now(self, step: str, name: str) -> dict:
        return {"name": name, "sha256": sha256_file(inside(self.root / name, self._home(step)))}


class Folder(Local):
    """One model folder: a single checkpoint, step 0."""

    def locate(self, step: str) -> str:
        """The folder itself."""
        return "."

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """Step 0."""
        reason = incomplete(self.root, self.allow_pickle)
        return ([], {0: reason}) if reason else ([0], {})


class TrainerRun(Local):
    """A run of transformers' Trainer: checkpoint-<step>/ folders, anything else is ignored."""

    def locate(self, step: str) -> str:
        """checkpoint-<step>."""
        return f"checkpoint-{step}"

    @cached_property
    def _found(self) -> tuple[list[int], dict[int, str]]:
        names = [
            re.fullmatch(r"checkpoint-(0|[1-9][0-9]*)", path.name) for path in self.root.iterdir() if path.is_dir()
        ]
        reasons = {int(name[1]): incomplete(self.root / name[0], self.allow_pickle) for name in names if name}
        whole = sorted(step for step, reason in reasons.items() if reason is None)
        return whole, {step: reason for step, reason in sorted(reasons.items()) if reason is not None}

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """Steps in numeric order; half-written checkpoints with their reasons."""
        return self._found


class DemoRun(TrainerRun):
    """The run that stages/demo.py trains."""

    made_by_pipeline = True

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """The steps that the demo keeps, trained already or not."""
        return list(DEMO_STEPS), {}

    def missing(self) -> str | None:
        """Never: the pipeline makes it."""
        return None

    def bring(self, step: str) -> Path:
        """The checkpoint as it was trained.

        Raises:
            Refusal: it is not whole.
        """
        reason = incomplete(self.folder(step))
        if reason:
            raise Refusal(reason)
        return self.folder(step)


def incomplete(folder: Path, allow_pickle: bool = False) -> str | None:
    """Why a checkpoint folder can't be used, or None: it must hold a config and all the weight files it names."""
    if reason := adapter_alone([path.name for path in folder.glob("*")], str(folder)):
        return reason
    if not (folder / CONFIG_FILE).exists():
        return f"no {CONFIG_FILE} in {folder}"
    try:
        weight_files(folder, allow_pickle)
    except Refusal as refusal:
        return str(refusal)
    return None


def read_card(file: Path) -> dict[str, Any]:
    """Licence and base model out of a model card's header.

    Raises:
        Refusal: the header is not YAML.
    """
    try:
        data = RepoCard(file.read_text(encoding="utf-8", errors="replace"), ignore_metadata_errors=True).data
    except ValueError as error:
        raise Refusal(f"{file}: its header is not YAML ({str(error).splitlines()[0]})") from None
    licence, base = data.get("license"), data.get("base_model")
    if licence == "other" and data.get("license_name"):
        licence = f"other ({data.get('license_name')})"
    return {"licence": _words(licence), "base_model": _words(base)}


def _words(value: Any) -> str | None:
    return ", ".join(map(str, value)) if isinstance(value, list) else None if value is None else str(value)

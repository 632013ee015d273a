"""Checkpoints in folders on this machine. Each kind of source answers the same few questions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stages.command import Refusal
from stages.sources.weights import weight_files

DEMO_STEPS = (0, 8, 16, 32, 64, 128, 256, 512)
DEMO_RUN = Path("data/runs/demo")


@dataclass(frozen=True)
class Source:
    """One place with checkpoints.

    Attributes:
        root: the folder, as it stands in params.yaml.
        made_by_pipeline: DVC makes the checkpoints, so that DVC and not the plan pins them.
    """

    root: Path
    made_by_pipeline = False

    def folder(self, step: str) -> Path:
        """The folder of one checkpoint."""
        raise NotImplementedError

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """The steps that are whole, ascending, and for those that are not, the reason."""
        raise NotImplementedError

    def missing(self) -> str | None:
        """Why there is nothing to read at all, or None."""
        return None if self.root.is_dir() else f"{self.root} is not there (expected a folder)"

    def tokenizer_folder(self, step: str) -> Path | None:
        """Where the tokenizer.json of a checkpoint lies: with it, or beside it in the run's folder."""
        places = (self.folder(step), self.root)
        return next((place for place in places if (place / "tokenizer.json").exists()), None)


class Folder(Source):
    """One model folder: a single checkpoint, step 0."""

    def folder(self, step: str) -> Path:
        """The folder itself."""
        return self.root

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """Step 0."""
        reason = incomplete(self.root)
        return ([], {0: reason}) if reason else ([0], {})


class TrainerRun(Source):
    """A run of transformers' Trainer: checkpoint-<step>/ folders, anything else is ignored."""

    def folder(self, step: str) -> Path:
        """checkpoint-<step>."""
        return self.root / f"checkpoint-{step}"

    @cached_property
    def _found(self) -> tuple[list[int], dict[int, str]]:
        names = [
            re.fullmatch(r"checkpoint-(0|[1-9][0-9]*)", path.name) for path in self.root.iterdir() if path.is_dir()
        ]
        reasons = {int(name[1]): incomplete(self.root / name[0]) for name in names if name}
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


# A new kind of source (a hub, say) is a class with these methods, a line here and a key in planning/schema.py.
KINDS: dict[str, type[Source]] = {"trainer": TrainerRun, "folder": Folder, "demo": DemoRun}


def open_source(source: dict) -> Source:
    """The source that a plan names.

    Args:
        source: `{"kind": ..., "path": ...}`, as in models/<id>/params.json.
    """
    return KINDS[source["kind"]](Path(source["path"]))


def incomplete(folder: Path) -> str | None:
    """Why a checkpoint folder can't be used, or None: it must hold a config and all the weight files it names."""
    if not (folder / "config.json").exists():
        return f"no config.json in {folder}"
    try:
        absent = [name for name in weight_files(folder) if not (folder / name).exists()]
    except Refusal as refusal:
        return str(refusal)
    return f"{folder} lacks {', '.join(absent)}" if absent else None

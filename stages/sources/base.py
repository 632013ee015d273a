"""What every kind of source answers, at plan time and later."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import read_json
from stages.sources.names import is_name
from stages.sources.weights import adapter_alone, choose
from stages.tokens.files import holds_vocabulary, tokenizer_names

CONFIG_FILE = "config.json"


class Source:
    """One place with checkpoints.

    Attributes:
        spec: the source as a plan has it: `kind`, and what belongs to the kind.
        revisions, folders, files: the pins by step, as in a plan: the immutable revision; the folder of the checkpoint
            under the source's root; the files that make it up, as `{"name", "bytes", "sha256"}`, `git_sha1` in
            place of `sha256` for what a hub keeps outside its large-file store.
        made_by_pipeline: DVC makes the checkpoints, so that DVC and not the plan pins them.
        remote: it lies on other machines, so that a plan keeps what it pinned and asks again only when told to.
    """

    made_by_pipeline = False
    remote = False

    def __init__(self, plan: dict[str, Any]) -> None:
        self.spec: dict[str, Any] = plan["source"]
        self.revisions: dict[str, str] = plan.get("revisions") or {}
        self.folders: dict[str, str] = plan.get("folders") or {}
        self.files: dict[str, list[dict]] = plan.get("files") or {}
        self.allow_pickle = bool(self.spec.get("allow_pickle"))

    @property
    def title(self) -> str:
        """What people call it."""
        raise NotImplementedError

    # At plan time.

    def missing(self) -> str | None:
        """Why there is nothing to read at all, or None."""
        raise NotImplementedError

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """The steps that are there, ascending, and for those that can't be used, the reason."""
        raise NotImplementedError

    def no_such_step(self, step: int) -> str:
        """What is said of a step that is not there."""
        raise NotImplementedError

    def name(self, step: str) -> str:
        """What a step is called where it lies."""
        return f"step {step}"

    def has(self, revision: str) -> bool:
        """Whether a revision that was pinned once can still be had; asked of remote sources alone."""
        raise NotImplementedError

    def look(self, steps: list[str]) -> None:
        """Ask for what these steps need, many at once where that saves time."""

    def locate(self, step: str) -> str:
        """The folder of a checkpoint under the source's root, `.` for the root itself."""
        raise NotImplementedError

    def listing(self, step: str) -> dict[str, dict]:
        """The files of a checkpoint's folder and of the root, by their path under the root.

        What is known of each for nothing: `bytes` and a hash on a hub, nothing for local files.
        """
        raise NotImplementedError

    def promise(self, step: str, name: str) -> dict:
        """One file as a plan pins it."""
        raise NotImplementedError

    def small_file(self, step: str, name: str) -> Path:
        """A small file on this machine: a config, an index, a tokenizer."""
        raise NotImplementedError

    def config(self, step: str) -> dict:
        """The config of a checkpoint.

        Raises:
            Refusal: it is not there, or is none.
        """
        name = f"{self.prefix(step)}{CONFIG_FILE}"
        try:
            config = read_json(self.small_file(step, name))
        except ValueError as error:
            raise Refusal(f"{self.title}/{name} is not JSON ({error})") from None
        if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
            raise Refusal(f"{self.title}/{name} has no model_type")
        return config

    def prefix(self, step: str) -> str:
        """What stands before the names of a checkpoint's own files."""
        folder = self.locate(step)
        return "" if folder == "." else f"{folder}/"

    def members(self, step: str, with_tokenizer: bool) -> list[str]:
        """The files that make up a checkpoint: config, weights, tokenizer, and code that may run.

        Raises:
            Refusal: there is no config, or there are no weights that are read here.
        """
        listing, prefix = self.listing(step), self.prefix(step)
        own = _beside(listing, prefix)
        where = f"{self.title}/{prefix}".rstrip("/")
        if reason := adapter_alone(own, where):
            raise Refusal(reason)
        if CONFIG_FILE not in own:
            raise Refusal(f"no {CONFIG_FILE} in {where}")
        names = [CONFIG_FILE, *choose(own, lambda name: self._index(step, prefix + name), where, self.allow_pickle)]
        if self.spec.get("trust_remote_code"):
            names += sorted(name for name in own if name.endswith(".py") and is_name(name))
        place = self._tokenizer_place(listing, prefix) if with_tokenizer else None
        return [prefix + name for name in names] + (_tokenizer_paths(listing, place) if place is not None else [])

    def _tokenizer_place(self, paths: Collection[str], prefix: str) -> str | None:
        """Where the tokenizer lies: with the checkpoint or at the top, and not where there are settings alone."""
        found = [place for place in dict.fromkeys([prefix, ""]) if _tokenizer_paths(paths, place)]
        whole = [place for place in found if holds_vocabulary(_beside(paths, place))]
        return next(iter(whole + found), None)

    def _index(self, step: str, name: str) -> Any:
        try:
            return read_json(self.small_file(step, name))
        except ValueError:
            raise Refusal(f"{self.title}/{name} is not JSON") from None

    def revision(self, step: str, files: list[dict]) -> str:
        """The immutable name of a checkpoint."""
        raise NotImplementedError

    def card(self, step: str) -> dict[str, Any]:
        """Licence and base model, as the source itself names them: `{"licence", "base_model"}`."""
        return {"licence": None, "base_model": None}

    # Later.

    def at_hand(self, step: str) -> Path | None:
        """The folder of a pinned checkpoint, if it is on this machine already; its bytes are not read for that."""
        raise NotImplementedError

    def bring(self, step: str) -> Path:
        """The folder of a pinned checkpoint on this machine, fetched first if need be."""
        raise NotImplementedError

    def top(self, step: str) -> Path:
        """What the names of `files` are relative to, on this machine, once the checkpoint is at hand."""
        raise NotImplementedError

    def tokenizer_folder(self, step: str) -> Path | None:
        """Where the tokenizer of a checkpoint lies: with it, or at the source's top."""
        paths = [file["name"] for file in self.files.get(step) or []] or list(self.listing(step))
        place = self._tokenizer_place(paths, self.prefix(step))
        return None if place is None else self.top(step) / place

    def bring_code(self, step: str) -> Path:
        """A folder with the config and the Python files of a checkpoint."""
        return self.bring(step)

    def provenance(self, step: str) -> dict[str, Any]:
        """What else a manifest should say of how the weights came to be."""
        return {}


def _beside(paths: Collection[str], prefix: str) -> list[str]:
    """The bare names of the files directly in a folder."""
    return [name for path in paths if path.startswith(prefix) and "/" not in (name := path.removeprefix(prefix))]


def _tokenizer_paths(paths: Collection[str], prefix: str) -> list[str]:
    """The files of a tokenizer that lies in a folder."""
    return [prefix + name for name in tokenizer_names(_beside(paths, prefix))]

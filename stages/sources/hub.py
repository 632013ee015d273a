"""Checkpoints in a repository of a hub: a branch or tag for each, a subfolder for each, or one alone."""

from __future__ import annotations

import difflib
import re
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from huggingface_hub.errors import EntryNotFoundError
from huggingface_hub.hf_api import RepoFile, RepoFolder

from stages.command import Refusal, Unreachable
from stages.sources.base import CONFIG_FILE, Source
from stages.sources.local import read_card
from stages.sources.names import COMMIT, is_path
from stages.sources.transfer import AT_ONCE, asked, at_hand, bring, bring_one, snapshot
from stages.sources.weights import listed

WHOLE, DECIMAL = r"(?P<step>0|[1-9][0-9]*)", r"(?P<step>[0-9]+(?:\.[0-9]+)?)"


class HubRepository(Source):
    """A repository of a hub. Branches and tags are resolved to commits once; everything later goes by commit."""

    remote = True

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.repo: str = self.spec["repo"]
        self.revision_name: str = self.spec.get("revision") or "main"
        self.subfolders: str | dict[str, str] | None = self.spec.get("subfolders")
        self._api = HfApi(library_name="lensmill")
        self._trees: dict[str, dict[str, dict] | Refusal] = {}
        self._small: dict[str, Path] = {}

    @property
    def title(self) -> str:
        """The repository."""
        return self.repo

    def missing(self) -> str | None:
        """The repository is not found or not allowed, with those of the same owner that are called alike."""
        try:
            asked(self.repo, lambda: self._api.model_info(self.repo))
        except Refusal as refusal:
            near = self._alike() if "not found" in str(refusal) else []
            return f"{refusal}{f' (did you mean {listed(near)}?)' if near else ''}"
        return None

    def _alike(self) -> list[str]:
        """Repositories of the same owner with a like name; none if the hub has no such list."""
        owner = self.repo.split("/")[0]
        try:
            names = asked(owner, lambda: [model.id for model in self._api.list_models(author=owner, limit=1000)])
        except Refusal:
            return []
        return difflib.get_close_matches(self.repo, [name for name in names if name != self.repo], 3)

    @cached_property
    def _refs(self) -> dict[str, str]:
        """The commit of each branch and tag, in one question; a branch goes before a tag of the same name."""
        refs = asked(self.repo, lambda: self._api.list_repo_refs(self.repo))
        found = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
        odd = [name for name, commit in found.items() if not COMMIT.fullmatch(str(commit))]
        if odd:
            raise Refusal(f"{self.repo}: the hub gives no commit for {odd[0]!r}")
        return found

    @cached_property
    def _steps(self) -> dict[int, str]:
        """By step, the name of its branch or tag, or its subfolder."""
        if isinstance(self.subfolders, dict):
            return {int(step): folder for step, folder in self.subfolders.items()}
        if self.subfolders:
            return self._matches(self.subfolders, self._folders(self.subfolders), self.spec.get("scale") or 1)
        if "{}" in self.revision_name:
            return self._matches(self.revision_name, list(self._refs), 1)
        return {0: self.revision_name}

    def _matches(self, template: str, names: list[str], scale: int) -> dict[int, str]:
        """The names that fit a template, by step: `{}` is its number, `*` is anything."""
        parts = re.split(r"(\{\}|\*)", template)
        number = WHOLE if scale == 1 else DECIMAL
        pattern = re.compile("".join({"{}": number, "*": "[^/]*"}.get(part, re.escape(part)) for part in parts))
        found: dict[int, str] = {}
        for name in names:
            match = pattern.fullmatch(name)
            if not match:
                continue
            step = float(match["step"]) * scale
            if abs(step - round(step)) > 1e-6:
                raise Refusal(f"{self.repo}: {name} is step {step:g}: set scale so that every step is a whole number")
            if found.setdefault(round(step), name) != name:
                raise Refusal(f"{self.repo}: {found[round(step)]} and {name} are both step {round(step)}")
        if not found:
            there = ", ".join(sorted(names)[:4]) or "none"
            what = "folder" if self.subfolders else "branch or tag"
            raise Refusal(f"{self.repo}: no {what} fits {template} (there: {there}{', …' if len(names) > 4 else ''})")
        return found

    def _folders(self, template: str) -> list[str]:
        """The folders that lie where a pattern's numbers stand."""
        parent = template[: template.index("{}")].rpartition("/")[0]
        commit = self._commit(self.revision_name)

        def entries() -> list:
            try:
                return list(self._api.list_repo_tree(self.repo, parent or None, revision=commit))
            except EntryNotFoundError:
                return []

        listing = asked(self.repo, entries)
        folders = [entry.path for entry in listing if isinstance(entry, RepoFolder)]
        depth = template.count("/")
        return [folder for folder in folders if folder.count("/") == depth and is_path(folder)]

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """All that the template or the subfolders name."""
        return sorted(self._steps), {}

    def no_such_step(self, step: int) -> str:
        """With the nearest that are there."""
        near = sorted(self._steps, key=lambda other: abs(other - step))[:3]
        names = ", ".join(self._steps[other] for other in sorted(near))
        return f"step {step} is not there: {self.repo} has no {self._asked_for(step)} (nearest: {names or 'none'})"

    def _asked_for(self, step: int) -> str:
        if self.subfolders:
            return "such subfolder"
        return f"branch or tag {self.revision_name.replace('{}', str(step))}"

    def name(self, step: str) -> str:
        """What a step is called in the repository: its branch or tag, or its subfolder."""
        if "{}" not in self.revision_name and not self.subfolders:
            return self.revision_name
        plain = self.revision_name.replace("{}", step)
        return self._steps.get(int(step), plain) if "*" in plain or self.subfolders else plain

    def locate(self, step: str) -> str:
        """The subfolder, or the repository's top."""
        return self.folders.get(step) or (self._steps[int(step)] if self.subfolders else ".")

    def _commit(self, name: str) -> str:
        if COMMIT.fullmatch(name):
            return name
        if name not in self._refs:
            near = difflib.get_close_matches(name, list(self._refs), 3, 0.3)
            raise Refusal(f"{self.repo} has no branch or tag {name} (nearest: {', '.join(near) or 'none'})")
        return self._refs[name]

    def commit(self, step: str) -> str:
        """The commit of a step: the pinned one, else what its branch or tag is now."""
        if step in self.revisions:
            return self.revisions[step]
        return self._commit(self.revision_name if self.subfolders else self.name(step))

    def has(self, commit: str) -> bool:
        """Whether a commit is still there."""
        try:
            asked(self.repo, lambda: list(self._api.list_repo_tree(self.repo, revision=commit)))
        except Unreachable:
            return False
        return True

    def look(self, steps: list[str]) -> None:
        """Ask for the listings of many steps at once."""
        if any(step not in self.revisions for step in steps):
            self._refs  # noqa: B018  asked for once, not once in each thread
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(self._tree, steps))

    def _tree(self, step: str) -> dict[str, dict] | Refusal:
        if step not in self._trees:
            try:
                self._trees[step] = self._ask_tree(step)
            except Refusal as refusal:
                self._trees[step] = refusal
        return self._trees[step]

    def _ask_tree(self, step: str) -> dict[str, dict]:
        commit, folder = self.commit(step), self.locate(step)
        found: dict[str, dict] = {}
        for place in dict.fromkeys([None, None if folder == "." else folder]):
            try:
                entries = asked(
                    self.repo, lambda place=place: list(self._api.list_repo_tree(self.repo, place, revision=commit))
                )
            except Refusal as refusal:
                raise Refusal(self._gone(step, commit, place, str(refusal))) from None
            for entry in entries:
                if isinstance(entry, RepoFile):
                    kind = {"sha256": entry.lfs.sha256} if entry.lfs else {"git_sha1": entry.blob_id}
                    found[entry.path] = {"bytes": entry.lfs.size if entry.lfs else entry.size, **kind}
        return found

    def _gone(self, step: str, commit: str, place: str | None, reason: str) -> str:
        if "no such revision" not in reason and "not found" not in reason:
            return reason
        if place:
            return f"step {step}: {self.repo} at {commit[:12]} has no folder {place}"
        if step in self.revisions:
            return (
                f"step {step}: commit {commit} of {self.repo} is gone from the hub and not in this machine's cache: "
                f"`make plan UPDATE=1` takes what {self.revision_name.replace('{}', step)} is now"
            )
        return f"step {step}: {reason}"

    def listing(self, step: str) -> dict[str, dict]:
        """The files of the checkpoint's folder and of the top, with sizes and hashes as the hub gives them."""
        found = self._tree(step)
        if isinstance(found, Refusal):
            raise found
        return found

    def promise(self, step: str, name: str) -> dict:
        """As the hub promises it."""
        return {"name": name, **self.listing(step)[name]}

    def small_file(self, step: str, name: str) -> Path:
        """Brought into the Hugging Face cache; one with the same hash in another step serves as well."""
        known = next((file for file in self.files.get(step, []) if file["name"] == name), None)
        facts = known or self.listing(step)[name]
        key = f"{name.rsplit('/', 1)[-1]} {facts.get('sha256') or facts.get('git_sha1')}"
        if key not in self._small:
            self._small[key] = bring_one(self.repo, self.commit(step), name)
        return self._small[key]

    def revision(self, step: str, files: list[dict]) -> str:
        """The commit."""
        return self.commit(step)

    def card(self, step: str) -> dict[str, Any]:
        """From the step's model card, else from that of the main branch."""
        if "README.md" in self.listing(step):
            found = read_card(self.small_file(step, "README.md"))
            if found["licence"]:
                return found
        commit = self._refs.get("main")
        names = asked(self.repo, lambda: self._api.list_repo_files(self.repo, revision=commit)) if commit else []
        if "README.md" in names:
            return read_card(bring_one(self.repo, commit, "README.md"))
        return super().card(step)

    def at_hand(self, step: str) -> Path | None:
        """The checkpoint's folder in the cache, if all its files are there."""
        files = self.files.get(step)
        if not files or not at_hand(self.repo, self.revisions[step], files):
            return None
        return self.top(step) / self.folders[step]

    def top(self, step: str) -> Path:
        """The folder of the commit's snapshot."""
        return snapshot(self.repo, self.revisions[step], self.files[step][0]["name"])

    def bring(self, step: str) -> Path:
        """The checkpoint's folder in the Hugging Face cache, every file as promised."""
        return bring(self.repo, self.revisions[step], self.files[step]) / self.folders[step]

    def bring_code(self, step: str) -> Path:
        """Config and Python files alone."""
        wanted = [f for f in self.files[step] if f["name"].endswith((".py", CONFIG_FILE))]
        return bring(self.repo, self.revisions[step], wanted) / self.folders[step]

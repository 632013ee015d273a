"""Files of a hub, by commit: huggingface_hub moves them, what arrives is checked against what was promised."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
from huggingface_hub import constants, hf_hub_download, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import disable_progress_bars

from stages.command import DISK_FULL, Unreachable, counted, say
from stages.files import sha256_file
from stages.sources.names import inside
from stages.sources.weights import listed

TRIES, FIRST_WAIT, AT_ONCE = 4, 1.0, 8
PASSING = {408, 429, 500, 502, 503, 504}


class _OneLine(logging.Filter):
    """Messages of huggingface_hub in one line, without queries: signed addresses carry their key there."""

    def filter(self, record: logging.LogRecord) -> bool:
        words = " ".join(record.getMessage().split())
        record.msg, record.args = re.sub(r"(https?://[^\s?]+)\?\S+", r"\1", words), ()
        return True


for _handler in logging.getLogger("huggingface_hub").handlers:
    _handler.addFilter(_OneLine())


def asked(repo: str, call: Callable[[], Any]) -> Any:
    """The answer of a hub to one question.

    Raises:
        Unreachable: what was not found, not allowed or not reached, in one line without addresses or tokens.
    """
    try:
        return call()
    except (HfHubHTTPError, httpx2.HTTPError, EntryNotFoundError, OSError) as error:
        if getattr(error, "errno", None) in DISK_FULL:
            raise
        raise Unreachable(explain(repo, error)) from None


def explain(repo: str, error: BaseException) -> str:
    """One line for people."""
    for kind, words in (
        (GatedRepoError, "is gated: accept its terms on its page at the hub, then set HF_TOKEN"),
        (RepositoryNotFoundError, "was not found; if it is private, set HF_TOKEN to a token that may read it"),
        (RevisionNotFoundError, "has no such revision"),
        (EntryNotFoundError, "has no such file or folder there"),
        (OfflineModeIsEnabled, "can't be asked for: HF_HUB_OFFLINE is set"),
    ):
        if isinstance(error, kind) or isinstance(error.__cause__, kind):
            return f"{repo} {words}"
    return f"{repo} can't be reached at the hub ({_reason(error)}): try again later"


def _reason(error: BaseException) -> str:
    """Why a request failed, without its address."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    if isinstance(error, httpx2.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx2.TransportError):
        return "no connection, or it broke off"
    if "Consistency check failed" in str(error):
        return "the answer was cut short"
    return _reason(error.__cause__) if error.__cause__ else type(error).__name__


def _is_passing(error: BaseException) -> bool:
    """Whether trying again may help."""
    if isinstance(error, (GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError, OfflineModeIsEnabled)):
        return False
    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code in PASSING
    return error.__cause__ is None or _is_passing(error.__cause__)


def cached(repo: str, commit: str, name: str) -> Path | None:
    """Where a file of a commit lies in the Hugging Face cache, if it does."""
    found = try_to_load_from_cache(repo, name, revision=commit)
    return Path(found) if isinstance(found, str) else None


def at_hand(repo: str, commit: str, files: list[dict]) -> bool:
    """Whether all files lie in the cache, as long as promised."""
    paths = ((cached(repo, commit, file["name"]), file["bytes"]) for file in files)
    return all(path is not None and path.stat().st_size == size for path, size in paths)


def bring_one(repo: str, commit: str, name: str) -> Path:
    """A small file of a commit; raises as `asked`."""
    return Path(asked(repo, lambda: hf_hub_download(repo, name, revision=commit)))


def bring(repo: str, commit: str, files: list[dict]) -> Path:
    """All files of a list, several at a time, into the Hugging Face cache; each is hashed and compared.

    Args:
        repo: the repository.
        commit: its commit.
        files: `{"name", "bytes", "sha256" or "git_sha1"}`, as promised when the commit was pinned.

    Returns:
        The folder of the commit's snapshot.

    Raises:
        Unreachable: it was not found, not allowed, not reached after several tries, or is not what was promised.
    """
    if not sys.stderr.isatty():
        disable_progress_bars()
    if not at_hand(repo, commit, files):
        size = sum(file["bytes"] for file in files) / 1e6
        say(f"{repo} at {commit[:12]}: {counted(len(files), 'file')}, {size:.1f} MB")
        _download(repo, commit, [file["name"] for file in files])
    wrong = _wrong(repo, commit, files)
    if wrong:
        for name in wrong:
            cached_file = cached(repo, commit, name)
            if cached_file:
                cached_file.resolve().unlink(missing_ok=True)
                cached_file.unlink(missing_ok=True)
        _download(repo, commit, list(wrong))
        wrong = _wrong(repo, commit, files)
    if wrong:
        raise Unreachable(f"{repo} at {commit[:12]} is not what the hub promised: {listed(list(wrong.values()))}")
    return snapshot(repo, commit, files[0]["name"])


def snapshot(repo: str, commit: str, name: str) -> Path:
    """The folder of a commit in the cache, which holds this file of it."""
    path = cached(repo, commit, name)
    assert path is not None
    return path.parents[name.count("/")]


def _download(repo: str, commit: str, names: list[str]) -> None:
    """Try until all have arrived; what arrived before an error stays."""
    wait = FIRST_WAIT
    for left in reversed(range(TRIES)):
        try:
            snapshot_download(repo, revision=commit, allow_patterns=[_literal(n) for n in names], max_workers=AT_ONCE)
            return
        except (HfHubHTTPError, httpx2.HTTPError, OSError) as error:
            if getattr(error, "errno", None) in DISK_FULL:
                raise
            if not _is_passing(error):
                raise Unreachable(explain(repo, error)) from None
            if not left:
                raise Unreachable(
                    f"{repo} at {commit[:12]}: the download failed {TRIES} times ({_reason(error)}); "
                    "what arrived is kept: run again"
                ) from None
            say(f"{repo} at {commit[:12]}: {_reason(error)}, trying again in {wait:.0f} s")
            time.sleep(wait)
            wait *= 2


def _literal(name: str) -> str:
    """A name as a pattern that matches it alone."""
    return re.sub(r"([*?[])", r"[\1]", name)


def _wrong(repo: str, commit: str, files: list[dict]) -> dict[str, str]:
    """What is not there as promised, by name, with what was promised and what was found."""
    found = {}
    for file in files:
        path = cached(repo, commit, file["name"])
        if path is None or not path.exists():
            found[file["name"]] = f"{file['name']} did not arrive"
            continue
        inside(path, path.parents[file["name"].count("/")])
        size = path.stat().st_size
        if size != file["bytes"]:
            found[file["name"]] = f"{file['name']} has {size} bytes (promised {file['bytes']})"
        elif not matches(path, file):
            found[file["name"]] = f"{file['name']} has another hash than promised"
    return found


def matches(path: Path, file: dict) -> bool:
    """Whether a file has the promised sha256, or the promised id as a blob of git."""
    if "sha256" in file:
        return sha256_file(path) == file["sha256"]
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as content:
        while chunk := content.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest() == file["git_sha1"]


def cache_folder() -> Path:
    """Where the Hugging Face cache is."""
    return Path(constants.HF_HUB_CACHE)

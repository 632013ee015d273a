"""A tokenizer that params.yaml names apart from the checkpoints: a folder, or a repository of a hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.sources.kinds import open_source
from stages.sources.names import is_path
from stages.tokens.files import tokenizer_names


def pin_tokenizer(named: str | None, old: dict[str, Any] | None) -> dict[str, Any] | None:
    """A small plan of its own, with one step, 0; None if params.yaml names none.

    Args:
        named: a folder, or OWNER/NAME or OWNER/NAME@REVISION.
        old: the model's last plan; what that pinned on a hub stays pinned.

    Raises:
        Refusal: it is neither, or holds no tokenizer.
    """
    if named is None:
        return None
    folder = Path(named)
    if folder.is_dir():
        spec = {"kind": "folder", "path": named}
    else:
        repo, _, revision = named.partition("@")
        if not (is_path(repo) and repo.count("/") == 1):
            raise Refusal(f"tokenizer: {named} is not there (expected a folder, or OWNER/NAME@REVISION of a hub)")
        before = (old or {}).get("tokenizer")
        if before and old["entry"]["tokenizer"] == named:
            return before
        spec = {"kind": "repo", "repo": repo, **({"revision": revision} if revision else {})}
    source = open_source({"source": spec})
    missing = source.missing()
    if missing:
        raise Refusal(f"tokenizer: {missing}")
    names = tokenizer_names(source.listing("0"))
    if not names:
        raise Refusal(f"tokenizer: {named} has no tokenizer.json, and nothing that it can be made from")
    files = [source.promise("0", name) for name in names]
    pins = {"revisions": source.revision("0", files), "folders": ".", "files": files}
    return {"source": spec, **{key: {"0": value} for key, value in pins.items()}}


def bring_pinned(tokenizer: dict[str, Any]) -> Path:
    """The folder of a tokenizer that `pin_tokenizer` pinned, on this machine; raises as `Source.bring`."""
    return open_source(tokenizer).bring("0")

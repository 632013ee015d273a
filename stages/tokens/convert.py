"""Bring the tokenizer beside a checkpoint into the form that a browser reads: tokenizer.json."""

from __future__ import annotations

import hashlib
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import TEMPORARY, canonical, json_text, new_folder, read_json, sha256_file
from stages.tokens.declared import custom_code, declared, json_object
from stages.tokens.files import tokenizer_files, vocabulary
from stages.tokens.texts import TEXTS

LIBRARIES = ("transformers", "tokenizers", "sentencepiece", "tiktoken")


def bring_tokenizer(source: Path, target: Path, model: dict[str, Any] | None = None) -> dict[str, Any] | None:
    """Put the tokenizer that lies in a folder into another one, as tokenizer.json and what belongs to it.

    A tokenizer.json is copied with its company, byte for byte. Anything else is converted and proven, once for the
    same files; what can't be proven is not shipped.

    Args:
        source: a checkpoint's folder or a run's.
        target: the folder to put it into; nothing is written where it isn't live.
        model: the checkpoint's config.json, where it lies elsewhere: the class of tokenizer may hang on its model_type.

    Returns:
        None if there is no tokenizer, else
        `{"made": "as it is" | "converted" | None, "from": [names], "by": class that converted | None,
        "compared_with": reader | None, "texts": number compared, "live": bool, "reason": line | None}`.

    Raises:
        Refusal: a config file is not JSON, or a library for the conversion is missing.
    """
    files = tokenizer_files(source)
    if not files:
        return None
    facts = {"made": None, "from": [file.name for file in files], "by": None, "compared_with": None, "reason": None}
    if source / "tokenizer.json" in files:
        for file in files:
            shutil.copyfile(file, target / file.name)
        return _answer(facts | {"made": "as it is"})
    reason = _hopeless(source)
    if reason:
        return _answer(facts | {"reason": reason})
    kept = _converted(source, files, json_object(source / "config.json") if model is None else model)
    facts |= read_json(kept / "answer.json")
    for file in sorted((kept / "made").iterdir()):
        shutil.copyfile(file, target / file.name)
    return _answer(facts)


def _answer(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts, with what follows from them."""
    return facts | {"texts": len(TEXTS) if facts["by"] else 0, "live": facts["made"] is not None}


def _hopeless(source: Path) -> str | None:
    """Why a tokenizer without tokenizer.json needs no attempt, or None."""
    config = declared(source)
    code = custom_code(config)
    if code:
        return f"the tokenizer is custom Python ({code}) and has no tokenizer.json"
    if vocabulary(source) is None:
        named = config.get("tokenizer_class")
        return f"no tokenizer.json and no vocabulary of a known kind{f' for {named}' if named else ''}"
    return None


def _converted(source: Path, files: list[Path], model: dict[str, Any]) -> Path:
    """The folder that keeps the conversion of these files by this code: answer.json and made/.

    Raises:
        Refusal: a library is missing.
    """
    try:
        libraries = {name: version(name) for name in LIBRARIES}
    except PackageNotFoundError as error:
        raise Refusal(
            f"{error.name} is not installed, but a tokenizer must be converted: it is of the extra trace"
        ) from None
    content = {
        "files": {file.name: sha256_file(file) for file in files},
        "model": [model.get("model_type"), model.get("tokenizer_class")],
        "libraries": libraries,
        "code": {file.name: sha256_file(file) for file in sorted(Path(__file__).parent.glob("*.py"))},
    }
    kept = TEMPORARY / "tokenizers" / hashlib.sha256(canonical(content)).hexdigest()
    if not (kept / "answer.json").is_file():
        # Transformers takes seconds to import; most checkpoints never need it.
        from stages.tokens.conversion import convert

        with new_folder(kept) as folder:
            (folder / "made").mkdir()
            (folder / "answer.json").write_text(json_text(convert(source, folder / "made", model)), encoding="utf-8")
    return kept

"""A tokenizer of SentencePiece, BPE, WordPiece or tiktoken files, made a tokenizer.json and proven to read alike."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import transformers
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from stages.command import Refusal
from stages.files import json_text, temporary
from stages.tokens.declared import added_tokens, class_name, declared, ends, with_flags
from stages.tokens.files import vocabulary
from stages.tokens.reading import encode, load_tokenizer
from stages.tokens.second import Reading, Unproven, merges, own, sentencepiece, tiktoken, wordpiece
from stages.tokens.texts import TEXTS

# Classes that read a SentencePiece model as it stands: what the model itself says converts it as well.
PLAIN = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "PreTrainedTokenizer", "TokenizersBackend"}
ROLES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
KEPT = (*ROLES, "clean_up_tokenization_spaces", "model_max_length", "padding_side")
# Regular expressions as both Oniguruma and JavaScript read them.
PORTABLE = {"A": r"(?<![\s\S])", "z": r"(?![\s\S])", "-": r"\x2d"}


def convert(source: Path, target: Path, model: dict[str, Any]) -> dict[str, Any]:
    """Write tokenizer.json and what belongs to it into `target`, or nothing if it can't be proven.

    The proof: every id that the files name is the same token, every text in TEXTS the same ids as in a second
    reading of the original files, with the special tokens at its ends that the config or the class's documentation
    says (their ids taken from the files); and AutoTokenizer, given the new files, reads them alike. The texts hold
    no special tokens; how those are found within a text is not compared.

    Args:
        source: the folder of the original files; no code in it is run.
        target: an empty folder.
        model: the checkpoint's config.json; only its model_type and tokenizer_class count.

    Returns:
        `{"made", "by", "compared_with", "reason"}`: the transformers class that converted, whose reading it was
        compared with, why nothing was made.

    Raises:
        Refusal: a library is missing.
    """
    # Tiktoken's own cache goes by a file's path, not by its content.
    os.environ["TIKTOKEN_CACHE_DIR"] = ""
    transformers.logging.set_verbosity_error()
    answer = {"made": None, "by": None, "compared_with": None, "reason": None}
    with temporary("tokenizer") as scratch:
        try:
            second, name = _stage(source, scratch / "from", model)
            for number, candidate in enumerate(_candidates(scratch / "from", name)):
                second = second or own(candidate)
                answer["compared_with"] = second.name
                made = scratch / f"made{number}"
                _save(candidate, made, scratch / "from")
                answer["reason"] = _difference(made, second, _ends(source, name, second, candidate))
                if answer["reason"] is None:
                    (made / "config.json").unlink()
                    shutil.copytree(made, target, dirs_exist_ok=True)
                    by = f"transformers {transformers.__version__} {type(candidate).__name__}"
                    return answer | {"made": "converted", "by": by}
        except ImportError as error:
            raise Refusal(f"a tokenizer can't be converted without a library: {_line(error, scratch)}") from None
        except Unproven as error:
            answer["reason"] = str(error)
    return answer


def _stage(source: Path, folder: Path, model: dict[str, Any]) -> tuple[Reading | None, str | None]:
    """Copy what AutoTokenizer may see into a folder, its config completed, and read the vocabulary a second way.

    Raises:
        Unproven: the files don't say how they are read.
    """
    folder.mkdir(parents=True)
    kind, files = vocabulary(source) or ("", [])
    config = declared(source)
    name = class_name(config, model)
    if kind == "tiktoken":
        if name != "LlamaTokenizer" and model.get("model_type") != "llama":
            raise Unproven(f"{files[0].name} doesn't say how a text is split before it is merged; add tokenizer.json")
        name = "LlamaTokenizer"
    if kind == "sentencepiece" and name is None:
        raise Unproven(f"{files[0].name} alone doesn't say what is added to a text: name tokenizer_class in its config")
    for file in files:
        shutil.copyfile(file, folder / ("tokenizer.model" if kind == "tiktoken" else file.name))
    for other in ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"):
        if (source / other).is_file():
            shutil.copyfile(source / other, folder / other)
    # Paths in a config point elsewhere.
    kept = {key: value for key, value in config.items() if not key.endswith("_file") and key != "name_or_path"}
    named = {"tokenizer_class": name} if name else {}
    (folder / "tokenizer_config.json").write_text(json_text(with_flags(kept, name) | named), encoding="utf-8")
    known = {key: model[key] for key in ("model_type", "tokenizer_class") if key in model}
    (folder / "config.json").write_text(json_text(known))
    try:
        return _second(kind, files, name, config, model), name
    except ValueError as error:
        raise Unproven(f"{', '.join(file.name for file in files)} can't be read ({_line(error, source)})") from None


def _second(kind: str, files: list[Path], name: str | None, config: dict, model: dict) -> Reading | None:
    """A reading of the original files that owes nothing to the conversion; None if there is no such."""
    if kind == "sentencepiece":
        return sentencepiece(files[0], name or "")
    if kind == "tiktoken":
        return tiktoken(files[0])
    if kind == "wordpiece":
        return wordpiece(files[0], config) if name in (None, "BertTokenizer") else None
    registered = TOKENIZER_MAPPING_NAMES.get(model.get("model_type"))
    return merges(*files, name or registered or "", bool(config.get("add_prefix_space")))


def _candidates(folder: Path, name: str | None) -> Iterator[PreTrainedTokenizerFast]:
    """The conversions to try, in this order: AutoTokenizer's, then one by what a SentencePiece model itself says.

    Raises:
        Unproven: AutoTokenizer can't read the files, or reads them in Python.
    """
    if name and not any(tokenizer_class_from_name(name + suffix) for suffix in ("", "Fast")):
        raise Unproven(f"{name} is no class of transformers; add tokenizer.json")
    tokenizer = _open(AutoTokenizer, folder)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise Unproven(f"transformers reads it in Python only ({type(tokenizer).__name__})")
    yield tokenizer
    if name in PLAIN and vocabulary(folder)[0] == "sentencepiece":
        yield _open(PreTrainedTokenizerFast, folder, vocab_file=str(vocabulary(folder)[1][0]))


def _open(kind: Any, folder: Path, **options: str) -> Any:
    """A class's tokenizer of the files in a folder.

    Raises:
        Unproven: it can't read them.
    """
    try:
        return kind.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **options)
    except ImportError:
        raise
    except Exception as error:  # whatever a class raises over files that aren't what it expects
        raise Unproven(f"{kind.__name__} can't read it ({_line(error, folder)})") from None


def _line(error: Exception, folder: Path) -> str:
    """An error's first line, the same wherever the folder lies."""
    lines = str(error).replace(f"{folder}{os.sep}", "").replace(str(folder), "the folder").strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:200]


def _portable(value: Any) -> Any:
    """A part of a tokenizer.json, its regular expressions in words that JavaScript has."""
    if isinstance(value, list):
        return [_portable(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {key: _portable(item) for key, item in value.items()}
    if isinstance(changed.get("Regex"), str):
        changed["Regex"] = re.sub(r"\\(.)", _escape, changed["Regex"], flags=re.DOTALL)
    return changed


def _escape(found: re.Match) -> str:
    character = found[1]
    if character in PORTABLE:
        return PORTABLE[character]
    # With its flag u JavaScript allows a backslash before letters, digits and its own syntax only.
    return found[0] if character.isalnum() or character in "^$\\.*+?()[]{}|/" else character


def _save(tokenizer: PreTrainedTokenizerFast, folder: Path, source: Path) -> None:
    """Write the files that are shipped, and a config.json for AutoTokenizer."""
    folder.mkdir()
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    parts = ("normalizer", "pre_tokenizer", "decoder")
    content |= {"truncation": None, "padding": None} | {part: _portable(content[part]) for part in parts}
    (folder / "tokenizer.json").write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    saved = {key: getattr(tokenizer, key, None) for key in KEPT}
    saved = {key: str(value) if key in ROLES else value for key, value in saved.items() if value is not None}
    if "add_prefix_space" in (content["pre_tokenizer"] or {}):
        # Transformers 4 sets the pre-tokenizer to what it finds here.
        saved["add_prefix_space"] = content["pre_tokenizer"]["add_prefix_space"]
    # Transformers 4 takes a list under this name only; transformers 5 takes both.
    extra = [str(token) for token in getattr(tokenizer, "extra_special_tokens", None) or []]
    saved |= {"additional_special_tokens": extra} if extra else {}
    saved |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json_text(dict(sorted(saved.items()))), encoding="utf-8")
    for name in ("config.json", "chat_template.jinja"):
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)


def _ends(source: Path, name: str | None, second: Reading, original: PreTrainedTokenizerFast) -> list[list[int]]:
    """The ids before and after a text, by config or documentation, numbered by the files.

    Raises:
        Unproven: it isn't known what is added, or its token has no id in the files.
    """
    if second.whole:
        return [[], []]
    roles = ends(declared(source), name or type(original).__name__)
    if roles is None:
        raise Unproven(f"nothing says what {name} adds at a text's ends: give add_bos_token in tokenizer_config.json")
    ids = {token: number for number, token in (second.tokens | added_tokens(source, declared(source))).items()}
    sides = [[str(getattr(original, f"{role}_token"))] if role else [] for role in roles]
    for token in sides[0] + sides[1]:
        if token not in ids:
            raise Unproven(f"{token!r} is added to a text, but the files have no id for it")
    return [[ids[token] for token in side] for side in sides]


def _difference(made: Path, second: Reading, sides: list[list[int]]) -> str | None:
    """Where the made files read otherwise than the original ones, in a line; None if nowhere."""
    try:
        tokenizer = load_tokenizer(made)
    except Refusal as refusal:
        return f"the converted {_line(refusal, made)}"
    auto = _open(AutoTokenizer, made)
    renamed = added_tokens(made.parent / "from", declared(made.parent / "from"))
    for number, token in (second.tokens | renamed).items():
        if tokenizer.id_to_token(number) != token:
            return f"id {number} is {tokenizer.id_to_token(number)!r} in the converted tokenizer.json, {token!r} before"
    for number, text in enumerate(TEXTS):
        expected, found = [*sides[0], *second.ids(text), *sides[1]], encode(tokenizer, text)
        if found != expected:
            return (
                f"converted tokenizer.json reads text {number} as {_short(found)}, {second.name} as {_short(expected)}"
            )
        if auto(text)["input_ids"] != found:
            return f"AutoTokenizer does not read text {number} as the converted tokenizer.json stands"
    return None


def _short(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 12 else f"[{', '.join(map(str, ids[:12]))}, …]"

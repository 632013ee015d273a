"""What a tokenizer's small files declare: its class, its added tokens, what it adds at a text's ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import read_json

# The class that reads the files of a model type, where tokenizer_config.json names none.
CLASSES = dict.fromkeys(("llama", "mistral", "mixtral"), "LlamaTokenizer")
# What each class adds before and after a text, as it documents: the role of the special token, or "".
ENDS = {
    "LlamaTokenizer": ("bos", ""),
    "CodeLlamaTokenizer": ("bos", ""),
    "GemmaTokenizer": ("bos", ""),
    "GPT2Tokenizer": ("", ""),
    "GPTNeoXTokenizer": ("", ""),
    "Qwen2Tokenizer": ("", ""),
    "T5Tokenizer": ("", "eos"),
    "RobertaTokenizer": ("cls", "sep"),
    "XLMRobertaTokenizer": ("cls", "sep"),
    "XGLMTokenizer": ("sep", ""),
}
# Of these, the ones that add_bos_token and add_eos_token change.
FLAGGED = {name for name, roles in ENDS.items() if roles in {("bos", ""), ("", "")}}


def json_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file, empty if it is not there.

    Raises:
        Refusal: it holds something else.
    """
    try:
        found = read_json(file) if file.is_file() else {}
    except ValueError as error:
        raise Refusal(f"{file} is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise Refusal(f"{file}: expected an object")
    return found


def declared(folder: Path) -> dict[str, Any]:
    """What tokenizer_config.json says, empty if there is none."""
    return json_object(folder / "tokenizer_config.json")


def custom_code(config: dict[str, Any]) -> str | None:
    """The Python file in the folder that a tokenizer_config.json asks to be run, or None."""
    asked = config.get("auto_map") or {}
    asked = asked.get("AutoTokenizer") if isinstance(asked, dict) else asked
    names = [name for name in (asked if isinstance(asked, list) else [asked]) if isinstance(name, str)]
    return names[0].split("--")[-1].split(".")[0] + ".py" if names else None


def class_name(config: dict[str, Any], model: dict[str, Any]) -> str | None:
    """The class that the files are for, without its suffix Fast; None if nothing says it.

    Args:
        config: tokenizer_config.json.
        model: the checkpoint's config.json.
    """
    name = config.get("tokenizer_class") or model.get("tokenizer_class") or CLASSES.get(model.get("model_type", ""))
    return name.removesuffix("Fast") if name else None


def added_tokens(folder: Path, config: dict[str, Any]) -> dict[int, str]:
    """The tokens that a folder adds to its vocabulary, or names anew, by id."""
    decoder = config.get("added_tokens_decoder") or {}
    found = {int(number): token["content"] if isinstance(token, dict) else token for number, token in decoder.items()}
    return {number: token for token, number in json_object(folder / "added_tokens.json").items()} | found


def with_flags(config: dict[str, Any], name: str | None) -> dict[str, Any]:
    """A tokenizer_config.json that says what its class's documentation says.

    Transformers 5 adds no bos where `add_bos_token` is absent, its own documentation and transformers 4 say that
    Llama's and Gemma's tokenizers do; files without a tokenizer.json are from that time.
    """
    if name not in FLAGGED:
        return config
    before, after = ENDS[name]
    flags = {"add_bos_token": bool(before), "add_eos_token": bool(after)}
    return flags | {key: value for key, value in config.items() if key not in flags or value is not None}


def ends(config: dict[str, Any], name: str | None) -> tuple[str, str] | None:
    """The roles of what is added before and after a text: `bos`, `eos`, `cls`, `sep` or ""; None if not known."""
    if name in ENDS and name not in FLAGGED:
        return ENDS[name]
    flags = with_flags(config, name)
    if "add_bos_token" not in flags and "add_eos_token" not in flags:
        return None
    return ("bos" if flags.get("add_bos_token") else ""), ("eos" if flags.get("add_eos_token") else "")

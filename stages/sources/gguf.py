"""A GGUF file: dequantised by transformers into a model folder of this machine, and then read like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.command import Refusal
from stages.files import DATA, json_text, new_folder, read_json, sha256_file
from stages.sources.base import CONFIG_FILE
from stages.sources.local import Local
from stages.sources.pin import short

DEQUANTISED = DATA / "dequantised"


class GgufFile(Local):
    """One file, one checkpoint, step 0."""

    def __init__(self, plan: dict[str, Any]) -> None:
        super().__init__(plan)
        self.file = self.root
        self.root = self.file.parent

    @property
    def title(self) -> str:
        """The file, as it stands in params.yaml."""
        return str(self.file)

    def missing(self) -> str | None:
        """The file is not there, or is no GGUF."""
        if not self.file.is_file():
            return f"{self.file} is not there (expected a GGUF file)"
        with self.file.open("rb") as opened:
            magic = opened.read(4)
        return None if magic == b"GGUF" else f"{self.file} begins with {magic!r}: expected a GGUF file"

    def steps(self) -> tuple[list[int], dict[int, str]]:
        """Step 0."""
        return [0], {}

    def locate(self, step: str) -> str:
        """The file has no folder of its own."""
        return "."

    def members(self, step: str, with_tokenizer: bool) -> list[str]:
        """The one file, which holds everything."""
        return [self.file.name]

    def config(self, step: str) -> dict:
        """As transformers reads it from the file's header."""
        return _attempt(self.file, lambda: _config(self.file))

    def at_hand(self, step: str) -> Path | None:
        """The dequantised folder, if it was made already."""
        folder = self._folder(step)
        return folder if (folder / CONFIG_FILE).is_file() else None

    def tokenizer_folder(self, step: str) -> Path | None:
        """With the dequantised weights."""
        return self._folder(step)

    def _folder(self, step: str) -> Path:
        return DEQUANTISED / short(self.revisions[step])

    def bring(self, step: str) -> Path:
        """Dequantise, once for each content.

        Raises:
            Refusal: the file changed since the plan, or transformers can't read it.
        """
        folder = self._folder(step)
        if (folder / CONFIG_FILE).is_file():
            return folder
        (pinned,) = self.files[step]
        if not self.file.is_file() or sha256_file(self.file) != pinned["sha256"]:
            raise Refusal(f"{self.file} is not the file that was planned: run `make plan` to take it as it is now")
        with new_folder(folder) as target:
            _attempt(self.file, lambda: _dequantise(self.file, target))
        return folder

    def provenance(self, step: str) -> dict[str, Any]:
        """How many tensors were stored in which format."""
        return {"dequantised": read_json(self._folder(step) / "gguf.json")}


def _attempt(file: Path, action: Any) -> Any:
    """Transformers' own words, for a file that it can't read."""
    try:
        return action()
    except Refusal:
        raise
    except Exception as error:  # transformers and gguf raise whatever a bad header makes them trip over
        words = " ".join(str(error).split())[:300] or type(error).__name__
        raise Refusal(f"{file} can't be read as GGUF by transformers ({words})") from None


def _config(file: Path) -> dict:
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    found = {key: value for key, value in config.to_diff_dict().items() if key not in ("quantization_config", "dtype")}
    return {**found, "model_type": config.model_type, "tie_word_embeddings": config.tie_word_embeddings}


def _dequantise(file: Path, target: Path) -> None:
    """Config, float32 weights and tokenizer as transformers reads them, and gguf.json, what they were stored as."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    tied = set(model.all_tied_weights_keys or {})
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    kinds: dict[str, int] = {}
    for tensor in GGUFReader(file).tensors:
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
    facts = {"file": file.name, "sha256": sha256_file(file), "tensors": dict(sorted(kinds.items()))}
    (target / "gguf.json").write_text(json_text(facts))
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
    tokenizer.save_pretrained(target)
    named = target / "tokenizer_config.json"
    named.write_text(json_text(read_json(named) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (target / CONFIG_FILE).write_text(json_text(_config(file)))

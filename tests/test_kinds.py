"""Kinds of checkpoints that need more than reading: pickles, code of their own, GGUF files."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from stages import backbone, fetch, plan, verify
from stages.command import Refusal
from stages.files import checkpoint_folder, manifest_file, read_json
from stages.sources.record import open_checkpoint
from tests.kinds import write_coded, write_gguf, write_pickled
from tests.pipeline import make, ship, write_params


class Boom:
    """Code that runs where it is unpickled."""

    def __init__(self, flag):
        self.flag = str(flag)

    def __reduce__(self):
        return Path.write_text, (Path(self.flag), "code ran")


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_is_allowed_is_read_as_weights_alone_and_gives_a_pair(here, legacy):
    write_pickled(here / "model", legacy=legacy)
    write_params("{folder: model}")
    with pytest.raises(Refusal, match="only pytorch_model.bin, a pickle, read only with allow_pickle: true"):
        plan.main()
    write_params("{folder: model, allow_pickle: true}")
    if legacy:
        plan.main()
        backbone.main("m")
        fetch.main("m", "0")
    else:
        ship("0")
        made = read_json(manifest_file("m"))
        assert made["source"]["allow_pickle"] is True
        verify.main()
    state = torch.load(here / "model/pytorch_model.bin", weights_only=True)
    checkpoint = open_checkpoint("m", "0")
    for parameter, name in checkpoint.record["parameters"].items():
        assert np.array_equal(checkpoint.read(parameter), state[name].numpy())


def test_a_pickle_that_runs_code_is_refused_and_does_not_run_it(here):
    write_pickled(here / "model")
    flag = here / "ran"
    with (here / "model/pytorch_model.bin").open("wb") as file:
        pickle.dump({"model.embed_tokens.weight": Boom(flag)}, file)
    write_params("{folder: model, allow_pickle: true}")
    with pytest.raises(Refusal, match="is not read: it is damaged or holds more than tensors") as caught:
        plan.main()
    assert len(str(caught.value).splitlines()) == 2
    assert not flag.exists()
    torch.save({"model.embed_tokens.weight": Boom(flag)}, here / "model/pytorch_model.bin")
    with pytest.raises(Refusal, match="is not read") as caught:
        plan.main()
    assert not flag.exists()
    assert "weights_only" not in str(caught.value), "torch's advice to read without protection is not passed on"


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64])
def test_every_dtype_of_a_pickle_is_read_as_it_is_stored(here, kind):
    from stages.sources.weights import open_weights, read

    values = torch.randn(5, 3).to(kind)
    torch.save({"a": values, "b": values.T, "c": values[0, 0].clone()}, here / "pytorch_model.bin")
    for name, entry in open_weights(here, allow_pickle=True).items():
        expected = {"a": values, "b": values.T, "c": values[0, 0]}[name]
        assert np.array_equal(read(entry).astype(np.float64), expected.to(torch.float64).numpy())


def test_remote_code_runs_only_where_its_source_says_so_and_is_pinned(here):
    write_coded(here / "model")
    write_params("{folder: model}")
    with pytest.raises(Refusal, match="asks for remote code .scaled.ScaledConfig, scaled.ScaledForCausalLM.: set"):
        plan.main()
    write_params("{folder: model, trust_remote_code: true}")
    ship("0")
    made = read_json(manifest_file("m"))
    assert made["source"]["trust_remote_code"] is True
    (code,) = made["source"]["code"]["files"]
    assert code["name"] == "scaled.py"
    assert len(code["sha256"]) == 64
    lens = read_json(here / "data/graphs/m/backbone/anatomy.json")["description"]
    assert "lm_head" in lens
    (here / "model/scaled.py").write_text((here / "model/scaled.py").read_text() + "\n# another comment\n")
    with pytest.raises(Refusal, match="scaled.py in model is not the code that was planned"):
        backbone.main("m")
    plan.main()
    assert read_json(here / "models/m/params.json")["code"]["files"][0]["sha256"] != code["sha256"]


def test_code_of_another_repository_is_not_run(here):
    write_coded(here / "model")
    config = read_json(here / "model/config.json")
    config["auto_map"]["AutoConfig"] = "someone/else--scaled.ScaledConfig"
    (here / "model/config.json").write_text(json.dumps(config))
    write_params("{folder: model, trust_remote_code: true}")
    with pytest.raises(Refusal, match="code of another repository .someone/else--scaled.ScaledConfig."):
        plan.main()


def test_code_that_is_to_be_ignored_leaves_transformers_own_class(here):
    write_coded(here / "model")
    config = read_json(here / "model/config.json") | {"model_type": "llama"}
    (here / "model/config.json").write_text(json.dumps(config))
    (here / "model/scaled.py").write_text(f"open({str(here / 'ran')!r}, 'w').write('code ran')\n")
    write_params("{folder: model, trust_remote_code: false}")
    ship("0")
    assert read_json(manifest_file("m"))["source"]["code"] is None
    assert not (here / "ran").exists()


def test_a_gguf_file_is_dequantised_once_and_says_so(here, capsys):
    (here / "files").mkdir()
    write_gguf(here / "files/tiny.Q8_0.gguf")
    write_params("{gguf: files/tiny.Q8_0.gguf}")
    ship("0")
    made = read_json(manifest_file("m"))
    (step,) = made["steps"]
    assert step["source"]["dequantised"]["tensors"] == {"F32": 5, "Q8_0": 16}
    assert made["live"] is True
    (folder,) = (here / "data/dequantised").iterdir()
    stored = load_file(folder / "model.safetensors")
    record = read_json(checkpoint_folder("m", "0") / "checkpoint.json")
    assert set(record["tensors"]) == set(stored)
    before = (folder / "model.safetensors").read_bytes()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    make("0")
    assert (folder / "model.safetensors").read_bytes() == before, "brought back as it was"
    with (here / "files/tiny.Q8_0.gguf").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    with pytest.raises(Refusal, match="is not the file that was planned"):
        fetch.main("m", "0")


@pytest.mark.parametrize("content", [b"", b"GGU", b"GGUF", b"GGUF\x03\x00\x00\x00" + b"\xff" * 16, b"ELF." * 9])
def test_a_file_that_is_no_gguf_is_refused(here, content):
    (here / "x.gguf").write_bytes(content)
    write_params("{gguf: x.gguf}")
    with pytest.raises(Refusal) as caught:
        plan.main()
    assert "x.gguf" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 2

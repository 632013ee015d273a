"""Checkpoints in folders: found, proven whole, pinned; each fault refused by name."""

import json
import os
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from stages import fetch, plan
from stages.anatomy.model import build
from stages.anatomy.stored import parameters
from stages.command import Refusal
from stages.files import checkpoint_folder, graph_folder, read_json, write_json
from stages.sources.record import open_checkpoint
from stages.sources.weights import open_weights, read
from tests.models import tiny, write_run, write_tokenizer
from tests.pipeline import write_params

WEIGHTS = "checkpoint-2/model.safetensors"


@pytest.fixture
def run(here):
    """A run of three steps, planned; of the trace only what fetch needs."""
    folder = write_run(here / "run")
    write_params("{trainer: run}")
    plan.main()
    network = build(read_json(here / "models/m/params.json")["config"])
    write_json(graph_folder("m", "backbone") / "parameters.json", parameters(network))
    return folder


def change(file, edit):
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


def refused(step="2", again=True):
    """Fetch a step after a new plan, and the one line that it is refused with."""
    if again:
        plan.main()
    with pytest.raises(Refusal) as caught:
        fetch.main("m", step)
    assert not checkpoint_folder("m", step).exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_junk_is_ignored_and_a_half_written_checkpoint_is_named(here, capsys):
    folder = write_run(here / "run", steps=(9, 10, 100))
    for name in ("checkpoint-best", "tmp-checkpoint-200", "checkpoint-100-old", "checkpoint-007"):
        (folder / name).mkdir()
    (folder / "checkpoint-300").mkdir()
    (folder / "checkpoint-300/optimizer.pt").write_bytes(b"x")
    shutil.copy(folder / "checkpoint-9/config.json", folder / "checkpoint-300")
    write_params("{trainer: run}")
    plan.main()
    assert read_json(here / "models/m/params.json")["steps"] == ["9", "10", "100"]
    assert "step 300 is incomplete and left out: no weights in run/checkpoint-300" in capsys.readouterr().out
    write_params("{trainer: run}", "steps: [9, 300, 8]")
    with pytest.raises(Refusal, match="(?s)step 8 is not there.*step 300 is incomplete"):
        plan.main()


def test_the_record_says_what_a_checkpoint_is_and_the_tokenizer_comes_from_the_run(run):
    fetch.main("m", "2")
    record = read_json(checkpoint_folder("m", "2") / "checkpoint.json")
    stored = load_file(run / WEIGHTS)
    assert set(record["tensors"]) == set(stored)
    assert (checkpoint_folder("m", "2") / "tokenizer.json").exists()
    checkpoint = open_checkpoint("m", "2")
    for parameter, name in record["parameters"].items():
        assert np.array_equal(checkpoint.read(parameter), stored[name].numpy())
    assert str(run) not in json.dumps(record), "a record holds no path of this machine"


def test_a_tied_head_that_is_absent_from_the_file_is_not_missing(run):
    assert "lm_head.weight" not in load_file(run / WEIGHTS)
    fetch.main("m", "2")


def test_missing_tensors_are_refused_by_name(run):
    change(run / WEIGHTS, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert "1 missing: model.layers.1.mlp.up_proj.weight" in refused()


def test_a_tensor_of_another_shape_is_refused(run):
    change(run / WEIGHTS, lambda t: t.update({"model.norm.weight": torch.ones(31)}))
    assert "model.norm.weight [31] (expected [32])" in refused()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_not_finite_are_refused_by_name(run, value, dtype):
    def edit(tensors):
        name = "model.layers.1.mlp.up_proj.weight"
        tensors[name] = tensors[name].to(dtype)
        tensors[name][3, 5] = value

    change(run / WEIGHTS, edit)
    assert "NaN or infinite weights in 1 tensors: model.layers.1.mlp.up_proj.weight" in refused()


def test_tied_weights_stored_as_two_different_tensors_are_refused(run):
    change(run / WEIGHTS, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"] + 1}))
    assert "ties model.embed_tokens.weight and lm_head.weight" in refused()


def test_tensors_of_no_parameter_are_noted(run, capsys):
    change(run / WEIGHTS, lambda t: t.update({"value_head.weight": torch.ones(3)}))
    plan.main()
    fetch.main("m", "2")
    assert "not part of this architecture: value_head.weight" in capsys.readouterr().out


def test_quantised_tensors_are_refused_by_dtype(run):
    change(run / WEIGHTS, lambda t: t.update({"model.norm.weight": torch.ones(32, dtype=torch.int8)}))
    assert "stored as I8" in refused()


def test_a_checkpoint_that_changed_since_the_plan_is_refused(run):
    change(run / WEIGHTS, lambda t: t["model.norm.weight"].add_(1))
    message = refused(again=False)
    assert "the plan has" in message
    assert "make plan" in message


def test_a_cut_file_is_refused_in_the_plan_and_in_fetch(run):
    content = (run / WEIGHTS).read_bytes()
    (run / WEIGHTS).write_bytes(content[:-1])
    with pytest.raises(Refusal, match="cut short"):
        plan.main()
    assert "the plan has" in refused(again=False)


def test_another_config_is_refused_with_both_values(run):
    file = run / "checkpoint-2/config.json"
    file.write_text(json.dumps({**read_json(file), "rms_norm_eps": 1e-3}))
    with pytest.raises(Refusal, match="steps 1 and 2 have different configs .rms_norm_eps."):
        plan.main()
    assert "the plan has" in refused(again=False)


def test_bookkeeping_in_the_config_is_no_difference(run):
    file = run / "checkpoint-2/config.json"
    file.write_text(json.dumps({**read_json(file), "transformers_version": "9", "use_cache": False}))
    plan.main()
    fetch.main("m", "2")


def test_a_step_with_another_tokenizer_is_refused(run):
    write_tokenizer(run / "checkpoint-2", swapped=True)
    with pytest.raises(Refusal, match=r"steps 1 and 2 have different tokenizers: prompt 0 \(a\): expected \[.*got \["):
        plan.main()


def test_sharding_changes_the_revision_and_not_the_weight_digest(run):
    fetch.main("m", "2")
    before = read_json(checkpoint_folder("m", "2") / "checkpoint.json")
    (run / WEIGHTS).unlink()
    tiny(seed=2).save_pretrained(run / "checkpoint-2", max_shard_size="20KB")
    assert len(list((run / "checkpoint-2").glob("*.safetensors"))) > 1
    plan.main()
    fetch.main("m", "2")
    after = read_json(checkpoint_folder("m", "2") / "checkpoint.json")
    assert before["weight_digest"] == after["weight_digest"]
    assert before["revision"] != after["revision"]


@pytest.fixture
def sharded(run):
    """Step 2 in several shards."""
    (run / WEIGHTS).unlink()
    tiny(seed=2).save_pretrained(run / "checkpoint-2", max_shard_size="20KB")
    return run / "checkpoint-2"


def test_a_missing_shard_is_named(sharded, capsys):
    shard = sorted(sharded.glob("*.safetensors"))[0]
    shard.unlink()
    plan.main()
    reason = f"lacks {shard.name}, which model.safetensors.index.json promises"
    assert f"step 2 is incomplete and left out: run/checkpoint-2 {reason}" in capsys.readouterr().out


def test_an_index_that_promises_what_a_shard_lacks_is_refused(sharded):
    index = sharded / "model.safetensors.index.json"
    content = read_json(index)
    content["weight_map"]["model.extra.weight"] = sorted(content["weight_map"].values())[0]
    index.write_text(json.dumps(content))
    with pytest.raises(Refusal, match=r"promises model\.extra\.weight"):
        open_weights(sharded)


@pytest.mark.parametrize(
    "name", ["../../outside.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", ".safetensors"]
)
def test_an_index_never_leads_out_of_its_folder(sharded, name):
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(Refusal, match="expected a .safetensors file beside it"):
        open_weights(sharded)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (2**40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}" + b"tail",
        b'\x50\x00\x00\x00\x00\x00\x00\x00{"a":{"dtype":"F32","shape":[4],"data_offsets":[0,999999]}}'.ljust(88),
    ],
)
def test_hostile_files_are_refused(here, content):
    (here / "model.safetensors").write_bytes(content)
    with pytest.raises(Refusal, match="cut short or is not safetensors"):
        open_weights(here)


def test_a_pickle_is_never_opened(here):
    class Boom:
        def __reduce__(self):
            return os.mkdir, (str(here / "ran"),)

    tiny().config.save_pretrained(here / "run/checkpoint-1")
    torch.save({"w": Boom()}, here / "run/checkpoint-1/pytorch_model.bin")
    write_params("{trainer: run}", "steps: [1]")
    with pytest.raises(Refusal, match=r"only pytorch_model\.bin, a pickle, read only with allow_pickle: true"):
        plan.main()
    assert not (here / "ran").exists()


def test_every_dtype_is_read_as_it_is_stored(here):
    values = torch.randn(3, 5)
    kinds = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    save_file({name: values.to(kind) for name, kind in kinds.items()}, here / "model.safetensors")
    for name, entry in open_weights(here).items():
        expected = values.to(kinds[name]).to(torch.float64).numpy()
        assert np.array_equal(read(entry).astype(np.float64), expected)


def test_a_plain_folder_is_one_checkpoint_step_0(here):
    tiny().save_pretrained(here / "model")
    write_params("{folder: model}")
    plan.main()
    assert read_json(here / "models/m/params.json")["steps"] == ["0"]


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_link_that_leads_out_of_the_run_is_refused(here, name):
    run = write_run(here / "run", steps=(1,))
    write_tokenizer(run / "checkpoint-1")
    file = run / "checkpoint-1" / name
    shutil.move(file, here / "outside")
    file.symlink_to(here / "outside")
    write_params("{trainer: run}")
    with pytest.raises(Refusal, match=f"{name} is a link that leads out of run"):
        plan.main()


def test_a_checkpoint_folder_and_a_cached_snapshot_may_be_links(here):
    run = write_run(here / "elsewhere", steps=(1,))
    (here / "run").mkdir()
    (here / "run/checkpoint-1").symlink_to(run / "checkpoint-1")
    write_params("{trainer: run}")
    plan.main()
    snapshot = here / "models--a--b/snapshots/abc"
    blobs = here / "models--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in (run / "checkpoint-1").iterdir():
        shutil.move(path, blobs / f"of-{path.name}")
        (snapshot / path.name).symlink_to(blobs / f"of-{path.name}")
    write_params(f"{{folder: {snapshot}}}")
    plan.main()


def test_a_tokenizer_file_that_the_plan_does_not_know_is_not_shipped(run):
    (run / "special_tokens_map.json").write_text("{}")
    assert "has special_tokens_map.json, which the plan does not know" in refused(again=False)


def test_all_problems_of_all_models_are_listed_and_nothing_is_written(here):
    (here / "params.yaml").write_text(
        "models:\n  a: {source: {trainer: gone}}\n  b: {source: {folder: .}}\n  c: {source: demo, prompts: none.json}\n"
    )
    with pytest.raises(Refusal) as caught:
        plan.main()
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["a", "b", "c"]
    assert not (here / "models").exists()


def test_remote_code_and_quantised_weights_are_refused_in_the_plan(here):
    tiny().save_pretrained(here / "model")
    config = read_json(here / "model/config.json")
    write_params("{folder: model}")
    for key, words in (("auto_map", "remote code"), ("quantization_config", "dequantise")):
        (here / "model/config.json").write_text(json.dumps({**config, key: {"AutoConfig": "x.X"}}))
        with pytest.raises(Refusal, match=words):
            plan.main()

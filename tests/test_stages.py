"""The stages of one model, from the plan to the manifest, without DVC: what is shipped and what is not."""

import json

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from safetensors.torch import load_file, save_file

from stages import backbone, fetch, fidelity, fp16, lens, manifest, plan, show, verify
from stages.command import Failed, Refusal
from stages.files import fidelity_file, manifest_file, pair_folder, read_json
from tests.models import tiny, write_tokenizer
from tests.pipeline import make, ship, trace, write_params


def test_the_manifest_says_what_was_made_and_verify_agrees(run, capsys):
    manifest.main("m")
    made = read_json(manifest_file("m"))
    for key in ("model", "format", "files", "hidden_size", "num_layers", "vocab_size", "tokenizer", "probe"):
        assert made[key] is not None, key
    assert [row["step"] for row in made["steps"]] == [1, 2, 3]
    for row in made["steps"]:
        assert row["f16_top1_match_all_pos"] == row["fp32_top1_match_all_pos"] == 1
        assert 0 < row["fp32_max_diff"] < row["f16_max_diff"]
        assert row["top1_token"]
        backbone_file, lens_file, _ = row["files"]
        assert backbone_file["bytes"] == row["backbone_bytes"]
        assert lens_file["largest_tensor"]["bytes_after_cast"] == 4 * 96 * 32
    assert len({row["source"]["weight_digest"] for row in made["steps"]}) == 3
    assert str(run.parent) not in manifest_file("m").read_text()
    verify.main()
    show.main("m", None)
    assert "step 3" in capsys.readouterr().out


def test_the_same_checkpoint_gives_the_same_bytes(run, tmp_path):
    first = {path.name: path.read_bytes() for path in pair_folder("m", "1").iterdir()}
    report = fidelity_file("m", "1").read_bytes()
    make("1")
    assert first == {path.name: path.read_bytes() for path in pair_folder("m", "1").iterdir()}
    assert report == fidelity_file("m", "1").read_bytes()


def swap_steps(folder):
    (folder / "backbone.f16.onnx").write_bytes((pair_folder("m", "2") / "backbone.f16.onnx").read_bytes())


def nudge(half, name):
    """One element of one stored weight, off by a few steps of float16."""

    def edit(folder):
        graph = onnx.load(folder / f"{half}.f16.onnx")
        (tensor,) = (t for t in graph.graph.initializer if t.name == name)
        array = numpy_helper.to_array(tensor).copy()
        array.flat[7] *= 1.01
        tensor.raw_data = array.tobytes()
        onnx.save(graph, folder / f"{half}.f16.onnx")

    return edit


def lose_the_mask(folder):
    graph = onnx.load(folder / "backbone.f16.onnx")
    for node in graph.graph.node:
        for index, name in enumerate(node.input):
            if name == "attention_mask" and node.op_type == "Cast":
                node.input[index] = "ones"
    shape = onnx.helper.make_node("Shape", ["attention_mask"], ["shape.of.mask"])
    one = numpy_helper.from_array(np.array([1], dtype=np.int64))
    ones = onnx.helper.make_node("ConstantOfShape", ["shape.of.mask"], ["ones"], value=one)
    graph.graph.node.insert(0, ones)
    graph.graph.node.insert(0, shape)
    onnx.save(graph, folder / "backbone.f16.onnx")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (swap_steps, "top-1 agrees in"),
        (nudge("backbone", "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"), "1 stored weights are not the cast"),
        (nudge("lens", "lm_head.weight"), "1 stored weights are not the cast"),
        (nudge("lens", "gpt_neox.final_layer_norm.bias"), "1 stored weights are not the cast"),
        (lose_the_mask, "f16 against its own weights at (2, 9) left padding"),
    ],
)
def test_a_wrong_pair_does_not_pass(run, damage, words):
    damage(pair_folder("m", "1"))
    with pytest.raises(Failed) as caught:
        fidelity.main("m", "1")
    assert words in str(caught.value)


def test_a_final_norm_that_is_lost_fails_at_the_fp32_gate(run):
    """The graph itself is wrong, so the float32 comparison must see it, not only the shipped pair."""
    file = run.parent / "data/graphs/m/lens/graph.onnx"
    graph = onnx.load(file, load_external_data=False)
    (norm,) = (node for node in graph.graph.node if node.op_type == "LayerNormalization")
    norm.attribute.append(onnx.helper.make_attribute("epsilon", 0.5))
    del norm.attribute[:-1]
    file.write_bytes(graph.SerializeToString())
    with pytest.raises(Failed, match="fp32 logits"):
        fidelity.main("m", "1")


def test_a_failed_gate_leaves_no_manifest_and_the_pair_whole(run):
    manifest.main("m")
    before = (pair_folder("m", "2") / "lens.f16.onnx").read_bytes()
    write_params("{trainer: run}", "gates: {f16_kl: 0}")
    plan.main()
    with pytest.raises(Failed, match=r"KL of a cell, layer \d: .* \(allowed f16_kl: 0\)"):
        fidelity.main("m", "2")
    assert not manifest_file("m").exists()
    assert (pair_folder("m", "2") / "lens.f16.onnx").read_bytes() == before
    write_params("{trainer: run}")
    plan.main()
    fidelity.main("m", "2")
    manifest.main("m")
    verify.main()


def test_files_that_were_not_measured_are_not_listed(run):
    swap_steps(pair_folder("m", "1"))
    with pytest.raises(Refusal, match="step 1: the report is of other files than those in data/onnx/m/step1"):
        manifest.main("m")
    assert not manifest_file("m").exists()


def test_with_exclude_the_rest_is_shipped_and_the_rejected_are_listed(run, capsys):
    file = run / "checkpoint-2/model.safetensors"
    tensors = load_file(file)
    tensors["gpt_neox.layers.0.mlp.dense_h_to_4h.bias"][0] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})
    write_params("{trainer: run}", "gates: {on_failure: exclude}")
    plan.main()
    make("2")
    manifest.main("m")
    made = read_json(manifest_file("m"))
    assert [row["step"] for row in made["steps"]] == [1, 3]
    (rejected,) = made["rejected"]
    assert rejected["step"] == 2
    assert "NaN or infinite weights in 1 tensors: gpt_neox.layers.0.mlp.dense_h_to_4h.bias" in rejected["reason"]
    assert not list(pair_folder("m", "2").glob("*.onnx"))
    verify.main()


def test_weights_that_change_between_fetch_and_fp16_are_refused(run):
    before = (pair_folder("m", "1") / "backbone.f16.onnx").read_bytes()
    file = run / "checkpoint-1/model.safetensors"
    tensors = load_file(file)
    tensors["gpt_neox.layers.0.mlp.dense_h_to_4h.weight"][0, 0] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(Refusal, match="not what was fetched"):
        fp16.main("m", "1")
    assert (pair_folder("m", "1") / "backbone.f16.onnx").read_bytes() == before


def test_a_vocabulary_larger_than_the_tokenizer(here, capsys):
    """Row 120 of 128 wins everywhere; the tokenizer has 90 tokens."""
    model = tiny("llama", vocab_size=128, tie_word_embeddings=False)
    with torch.no_grad():
        model.lm_head.weight.mul_(0.01)
        model.lm_head.weight[120] = 5 * torch.sign(model.model.norm.weight)
        model.model.embed_tokens.weight.abs_().add_(1)
    model.save_pretrained(here / "model")
    write_tokenizer(here / "model")
    (here / "data/prompts/prompts.json").write_text('[{"id": "é", "text": "w1 中国 🌙"}]')
    write_params("{folder: model}")
    ship("0")
    made = read_json(manifest_file("m"))
    assert (made["vocab_size"], made["reading"]["size"]) == (128, 90)
    assert made["steps"][0]["top1_token"] == "<no token>"
    show.main("m", "w1 🌙")
    assert "<no token>" in capsys.readouterr().out


def test_a_tokenizer_with_more_ids_than_rows_is_refused(here):
    tiny("llama", vocab_size=80).save_pretrained(here / "model")
    write_tokenizer(here / "model")
    (here / "data/prompts/prompts.json").write_text('[{"id": "a", "text": "w85"}]')
    write_params("{folder: model}")
    trace()
    fetch.main("m", "0")
    fp16.main("m", "0")
    with pytest.raises(Refusal, match="gives id 89, but the model has 80 rows"):
        fidelity.main("m", "0")


def test_a_model_without_a_tokenizer_is_measured_on_random_ids(here):
    tiny("gpt2").save_pretrained(here / "model")
    write_params("{folder: model}")
    ship("0")
    made = read_json(manifest_file("m"))
    assert made["tokenizer"] is made["reading"] is made["steps"][0]["top1_token"] is None
    assert made["steps"][0]["fidelity"]["cells"] == 3 * 8 * 12
    verify.main()
    with pytest.raises(Refusal, match="no tokenizer"):
        show.main("m", None)


def test_an_architecture_without_a_lens_is_refused_in_one_line(here):
    (here / "model").mkdir()
    tiny("llama").save_pretrained(here / "model")
    config = read_json(here / "model/config.json")
    (here / "model/config.json").write_text(json.dumps({**config, "model_type": "t5"}))
    write_params("{folder: model}")
    plan.main()
    for stage in (backbone, lens):
        with pytest.raises(Refusal, match="'t5' has no causal language model"):
            stage.main("m")
    assert not (here / "data/graphs").exists()

"""Measures that don't depend on the scale of the logits, gates that fail."""

import copy

import pytest
import torch

from stages.anatomy.find import find
from stages.measure.compare import Scores, divergence, relative, total
from stages.measure.gates import beyond_fp32, failures
from stages.measure.pair import Reference, one_unit_off, own_rounding
from stages.planning.schema import Gates
from tests.models import tiny


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
def test_relative_error_does_not_depend_on_scale(scale):
    a = torch.tensor([1.0, -4.0, 2.0])
    assert relative(a * scale, (a + 0.04) * scale) == pytest.approx(0.01, rel=1e-4)


def test_relative_error_of_what_is_not_finite_is_infinite():
    assert relative(torch.ones(2), torch.tensor([1.0, float("nan")])) == float("inf")
    assert relative(torch.zeros(2), torch.zeros(2)) == 0
    assert relative(torch.zeros(2), torch.ones(2)) > 0


@pytest.mark.parametrize("noise", [1e-6, 1e-4, 1e-2, 1.0, 30.0])
def test_divergence_in_float32_is_that_of_float64(noise):
    generator = torch.Generator().manual_seed(0)
    a = 5 * torch.randn(20, 300, generator=generator)
    b = a + noise * torch.randn(20, 300, generator=generator)
    logs = a.double().log_softmax(-1), b.double().log_softmax(-1)
    expected = (logs[0].exp() * (logs[0] - logs[1])).sum(-1)
    # What float32 can resolve of the noise itself: a logit of 5 has steps of 5e-7.
    assert torch.allclose(divergence(a, b - a).double(), expected, rtol=1e-2, atol=1e-12)


def test_scores_tell_strict_from_near_ties():
    reference = torch.tensor([[4.0, 3.999, 0.0], [4.0, 1.0, 0.0], [0.0, 4.0, 1.0]])
    other = torch.tensor([[4.0, 4.001, 0.0], [1.0, 4.0, 0.0], [0.0, 4.0, 1.0]])
    scores = Scores()
    scores.add(reference, other, near_tie=1e-3)
    assert (scores.cells, scores.strict, scores.near) == (3, 1, 2)
    assert total([scores, scores]).as_json()["top1"] == pytest.approx(2 / 3)


def test_scores_of_nan_are_infinite_and_no_cell_agrees():
    scores = Scores()
    scores.add(torch.ones(2, 3), torch.full((2, 3), float("nan")), near_tie=1e-3)
    assert scores.near == 0
    assert scores.rel == scores.kl_max == float("inf")


def report():
    layer = {"layer": 0, "fp32_hidden_rel": 1e-7, "f16_hidden_rel": 1e-3, "fp32_logits_rel": 1e-7}
    layer |= {"f16_logits_rel": 1e-3, "f16_kl_max": 1e-6}
    return {
        "identity_rel": 0.0,
        "fp32_own_rounding": None,
        "layers": [layer, {**layer, "layer": 1}],
        "shapes": [{"batch": 2, "tokens": 9, "padding": "left", "fp32_rel": 1e-7, "stored_rel": 1e-7}],
        "f16": {"top1": 1.0},
        "weights": {"compared": 3, "different": []},
    }


GATES = Gates().model_dump()


def test_a_good_report_meets_every_gate():
    assert failures(report(), GATES) == []


@pytest.mark.parametrize("bad", [1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("fp32_hidden_rel", "fp32 stream, layer 1"),
        ("fp32_logits_rel", "fp32 logits, layer 1"),
        ("f16_hidden_rel", "f16 stream, layer 1"),
        ("f16_logits_rel", "f16 logits, layer 1"),
        ("f16_kl_max", "KL of a cell, layer 1"),
    ],
)
def test_each_gate_fails_on_its_layer_with_the_number_and_the_limit(key, words, bad):
    changed = report()
    changed["layers"][1][key] = bad
    (found,) = failures(changed, GATES)
    assert words in found
    assert f"{bad:.3g} (allowed" in found


def test_float32_is_not_asked_for_more_than_the_model_itself_can_tell():
    changed = report()
    changed["layers"][1]["fp32_hidden_rel"] = 3e-5
    assert beyond_fp32(changed, GATES)
    assert not beyond_fp32(report(), GATES)
    changed["fp32_own_rounding"] = 1e-6
    assert "3e-05 (allowed fp32_rel: 1e-05)" in failures(changed, GATES)[0]
    changed["fp32_own_rounding"] = 2e-5
    assert failures(changed, GATES) == []
    changed["layers"][1]["fp32_hidden_rel"] = 5e-5
    assert "5e-05 (allowed fp32_rel: 4e-05)" in failures(changed, GATES)[0]


def test_a_model_one_unit_off_has_every_weight_moved_and_is_a_copy():
    model = tiny("llama")
    before = {name: value.clone() for name, value in model.named_parameters()}
    for name, value in one_unit_off(model).named_parameters():
        steps = (value - before[name]).abs() / before[name].abs()
        assert (steps > 2**-25).all()
        assert (steps < 2**-22).all()
        assert 0.3 < (value > before[name]).float().mean() < 0.7 or value.numel() < 40
        assert torch.equal(dict(model.named_parameters())[name], before[name])


def test_a_models_own_rounding_is_small_and_grows_with_what_it_amplifies():
    ids = torch.randint(0, 96, (2, 9), generator=torch.Generator().manual_seed(0))
    found = []
    for scale in (1, 30):
        model = tiny("llama")
        with torch.no_grad():
            for block in model.model.layers:
                block.self_attn.q_proj.weight.mul_(scale)
                block.self_attn.k_proj.weight.mul_(scale)
        reference = Reference(model, find(model))
        found.append(own_rounding(reference, [(ids, torch.ones_like(ids))]))
    assert 1e-8 < found[0] < 5e-6
    assert found[1] > 3 * found[0], "a sharper attention tells its keys apart by less"


def test_the_other_gates_fail_too():
    for change, words in (
        (lambda r: r.update(identity_rel=0.1), "lens(hidden[L])"),
        (lambda r: r["f16"].update(top1=0.999), "99.9000%"),
        (lambda r: r["shapes"][0].update(fp32_rel=1.0), "fp32 at (2, 9) left padding"),
        (
            lambda r: r["shapes"][0].update(stored_rel=float("nan")),
            "f16 against its own weights at (2, 9) left padding",
        ),
        (lambda r: r["weights"].update(different=["lens: w"]), "lens: w"),
    ):
        changed = copy.deepcopy(report())
        change(changed)
        (found,) = failures(changed, GATES)
        assert words in found

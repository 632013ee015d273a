"""Steps that are not what they say: copies, and weights that are the same in part."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from stages import fetch, manifest, plan, summary, verify
from stages.command import Refusal
from stages.files import manifest_file, read_json
from stages.manifests.notes import may_forbid
from tests.models import write_run
from tests.pipeline import make, ship, trace, write_params

WEIGHTS = "model.safetensors"


@pytest.fixture
def copied(here):
    """Step 20 has the weights of step 10; step 30 shares the embedding with it."""
    run = write_run(here / "run", steps=(10, 20, 30))
    shutil.copy(run / "checkpoint-10" / WEIGHTS, run / "checkpoint-20" / WEIGHTS)
    first, third = (load_file(run / f"checkpoint-{step}" / WEIGHTS) for step in (10, 30))
    third["model.embed_tokens.weight"] = first["model.embed_tokens.weight"].clone()
    save_file(third, run / "checkpoint-30" / WEIGHTS, metadata={"format": "pt"})
    return run


def reshard(run):
    """The same tensors in other files, so that no two files are equal."""
    state = load_file(run / "checkpoint-20" / WEIGHTS)
    save_file(dict(reversed(state.items())), run / "checkpoint-20" / WEIGHTS, metadata={"format": "pt", "made": "anew"})


def test_a_copy_of_a_step_is_refused_in_the_plan_with_both_named(copied, here):
    write_params("{trainer: run}")
    with pytest.raises(Refusal, match="steps 10, 20 hold the same weights, so .* or set allow_duplicates: true"):
        plan.main()
    assert not (here / "models").exists()


def test_a_copy_in_other_files_is_refused_when_it_is_read(copied):
    reshard(copied)
    write_params("{trainer: run}")
    trace()
    fetch.main("m", "10")
    with pytest.raises(Refusal, match="holds the same weights as step 10 .digest .*set allow_duplicates: true"):
        fetch.main("m", "20")


def test_a_step_that_was_mended_meanwhile_is_no_copy(copied):
    reshard(copied)
    write_params("{trainer: run}")
    trace()
    fetch.main("m", "10")
    state = load_file(copied / "checkpoint-10" / WEIGHTS)
    state["model.norm.weight"] += 1
    save_file(state, copied / "checkpoint-10" / WEIGHTS, metadata={"format": "pt"})
    plan.main()
    fetch.main("m", "20")


def test_an_allowed_copy_is_marked_and_shared_tensors_are_told(copied, capsys):
    write_params("{trainer: run}", "allow_duplicates: true\nlicence: cc-by-nc-4.0")
    ship("10", "20", "30")
    made = read_json(manifest_file("m"))
    assert [step.get("duplicate_of") for step in made["steps"]] == [[20], [10], None]
    (row,) = made["shared_weights"]
    assert row["steps"] == [10, 20, 30]
    assert row["tensors"] == ["model.embed_tokens.weight"]
    assert 0.1 < row["share"] < 0.9
    verify.main()
    capsys.readouterr()
    summary.main(["m"])
    said = capsys.readouterr().out
    assert "m: step 20 holds the same weights as step 10, as allowed" in said
    assert f"m: steps 10, 20, 30 share {row['share']:.0%} of their weights (model.embed_tokens.weight)" in said
    assert "m: licence cc-by-nc-4.0: it may forbid passing these files on" in said


def test_with_exclude_no_member_of_a_group_is_shipped(copied):
    write_params("{trainer: run}", gates="on_failure: exclude")
    ship("10", "20", "30")
    made = read_json(manifest_file("m"))
    assert [step["step"] for step in made["steps"]] == [30]
    assert [row["step"] for row in made["rejected"]] == [10, 20]
    assert "holds the same weights as step 20" in made["rejected"][0]["reason"]
    verify.main()


def test_the_manifest_refuses_a_copy_that_got_past_fetch(copied):
    reshard(copied)
    write_params("{trainer: run}", "allow_duplicates: true")
    trace()
    for step in ("10", "20", "30"):
        make(step)
    write_params("{trainer: run}")
    plan.main()
    with pytest.raises(Refusal, match="step 20 holds the same weights as step 10: not both"):
        manifest.main("m")
    assert not manifest_file("m").exists()


def test_what_two_steps_share_by_nature_is_not_told(here):
    run = write_run(here / "run", kind="gpt_neox", steps=(1, 2))
    states = [load_file(run / f"checkpoint-{step}" / WEIGHTS) for step in (1, 2)]
    for step, state in zip((1, 2), states, strict=True):
        for name, tensor in state.items():
            if tensor.dim() == 1:
                state[name] = torch.ones_like(tensor)
        save_file(state, run / f"checkpoint-{step}" / WEIGHTS, metadata={"format": "pt"})
    write_params("{trainer: run}")
    ship("1", "2")
    assert read_json(manifest_file("m"))["shared_weights"] == []


@pytest.mark.parametrize(
    ("licence", "told"),
    [
        ("apache-2.0", False),
        ("mit", False),
        ("cc-by-nc-4.0", True),
        ("cc-by-4.0", False),
        ("other", True),
        ("other (llama3)", True),
        (None, True),
        ("bsd-3-clause", False),
    ],
)
def test_licences_that_may_forbid_passing_on_are_told(licence, told):
    assert may_forbid(licence) is told

"""One run after another through real `dvc repro`: what runs, what does not, and what a stranger's clone gets."""

import re
import shutil
import signal
import subprocess
import time

import pytest
from safetensors.torch import load_file, save_file

from stages.files import read_json
from tests.conftest import copy_repository, write_prompts
from tests.models import tiny, write_run

PARAMS = """
models:
  m:
    source: {{trainer: run}}
    steps: {steps}
    probe: w1 w2
    gates: {{{gates}}}
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A workspace with one model, m, of steps 1 to 3, of which step 2 holds NaN."""
    workspace = copy_repository(tmp_path_factory.mktemp("dvc") / "lensmill")
    write_prompts(workspace.root)
    run = write_run(workspace.root / "run", "llama", steps=(1, 2, 3, 7))
    shutil.move(run / "checkpoint-7", workspace.root / "later")
    poison(run / "checkpoint-2/model.safetensors")
    plan(workspace)
    return workspace


def poison(file):
    tensors = load_file(file)
    tensors["model.layers.1.mlp.up_proj.weight"][:] = float("nan")
    save_file(tensors, file, metadata={"format": "pt"})


def plan(workspace, steps="all", gates=""):
    workspace.params(PARAMS.format(steps=steps, gates=gates))
    return workspace.stage("plan").stdout


def repro(workspace, check=True):
    """`make repro`, and the stages that DVC ran."""
    done = workspace.make("repro", check=check)
    return done, re.findall(r"Running stage '(?:models/m/dvc\.yaml:)?([^']+)'", done.stdout)


def test_a_bad_checkpoint_does_not_stop_the_others(workspace):
    done, _ = repro(workspace, check=False)
    assert done.returncode != 0
    last = done.stdout.splitlines()[-1]
    assert last.startswith("m step 2: failed: fetch: NaN or infinite weights in 1 tensors: model.layers.1.mlp.up_proj")
    for step in (1, 3):
        assert (workspace.root / f"data/fidelity/m/step{step}.json").exists()
    assert not (workspace.root / "data/onnx/m/manifest.json").exists()
    assert not (workspace.root / "data/onnx/m/step2").exists()
    assert "Traceback" not in done.stdout + done.stderr


def test_after_a_repair_only_that_step_runs(workspace):
    tiny("llama", seed=2).save_pretrained(workspace.root / "run/checkpoint-2")
    assert "step 2 changed" in plan(workspace)
    done, ran = repro(workspace)
    assert ran == ["fetch@2", "fp16@2", "fidelity@2", "manifest", "catalogue"]
    assert [row["step"] for row in manifest(workspace)["steps"]] == [1, 2, 3]
    assert done.stdout.count("shipped") >= 3


def manifest(workspace):
    return read_json(workspace.root / "data/onnx/m/manifest.json")


def test_nothing_to_do_runs_nothing(workspace):
    with (workspace.root / "README.md").open("a") as file:
        file.write("\na line\n")
    _, ran = repro(workspace)
    assert ran == []
    assert "up to date" in workspace.dvc("status").stdout


def test_a_new_step_runs_alone(workspace):
    shutil.move(workspace.root / "later", workspace.root / "run/checkpoint-7")
    assert "step 7 added" in plan(workspace)
    _, ran = repro(workspace)
    assert ran == ["fetch@7", "fp16@7", "fidelity@7", "manifest", "catalogue"]
    assert [row["step"] for row in manifest(workspace)["steps"]] == [1, 2, 3, 7]


def test_a_step_that_is_no_longer_wanted_goes_from_the_manifest(workspace):
    assert "step 7 removed" in plan(workspace, steps="[1, 2, 3]")
    _, ran = repro(workspace)
    assert set(ran) <= {"plan", "manifest", "catalogue"}
    assert [row["step"] for row in manifest(workspace)["steps"]] == [1, 2, 3]
    workspace.stage("verify")


def test_a_changed_threshold_runs_fidelity_and_manifest(workspace):
    plan(workspace, steps="[1, 2, 3]", gates="f16_kl: 2e-3")
    _, ran = repro(workspace)
    expected = {"fidelity@1", "fidelity@2", "fidelity@3", "manifest"}
    assert expected <= set(ran) <= expected | {"plan", "catalogue"}


def test_a_plan_that_no_longer_fits_is_noticed_and_says_what_to_do(workspace):
    before = (workspace.root / "params.yaml").read_text()
    workspace.params(PARAMS.format(steps="[1, 2]", gates=""))
    for done in (workspace.dvc("repro", check=False), repro(workspace, check=False)[0]):
        assert done.returncode != 0
        assert "params.yaml no longer fits models/ (m changed): run `make plan`" in done.stderr
        assert "Running stage 'models" not in done.stdout
    workspace.params(before)


def test_a_failed_gate_is_a_stage_that_is_not_done(workspace):
    plan(workspace, steps="[1, 2, 3]", gates="f16_rel: 0")
    done, _ = repro(workspace, check=False)
    assert done.returncode != 0
    assert "m step 1: failed: fidelity: f16 stream, layer" in done.stdout
    assert "(allowed f16_rel: 0)" in done.stdout
    assert not (workspace.root / "data/onnx/m/manifest.json").exists()
    assert "fidelity@1" in workspace.dvc("status").stdout
    assert workspace.stage("verify", check=False).returncode == 1
    plan(workspace, steps="[1, 2, 3]", gates="f16_kl: 2e-3")
    _, ran = repro(workspace)
    assert "fp16@1" not in ran
    workspace.stage("verify")


def test_files_that_change_while_their_measures_stay_are_listed_anew(workspace):
    before = manifest(workspace)["steps"][0]["files"][1]["sha256"]
    fill = workspace.root / "stages/graph/fill.py"
    fill.write_text(fill.read_text().replace('name=f"{name}.cast"', 'name=f"{name}.widened"'))
    _, ran = repro(workspace)
    assert "manifest" in ran
    assert manifest(workspace)["steps"][0]["files"][1]["sha256"] != before
    workspace.stage("verify")


def test_dvc_killed_in_the_middle_of_a_stage_runs_it_again(workspace):
    (workspace.root / "data/onnx/m/step1/lens.f16.onnx").unlink()
    shutil.rmtree(workspace.root / ".dvc/cache/runs")
    edit(workspace.root / "stages/fp16.py", "# a changed stage\n")
    command = ["dvc", "repro", "models/m/dvc.yaml:fp16"]
    process = subprocess.Popen(command, cwd=workspace.root, stdout=subprocess.PIPE, text=True, start_new_session=True)
    for line in process.stdout:
        if "stages.fp16 m 1" in line:
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done, ran = repro(workspace)
    assert ran[0] in ("fp16@1", "fp16@2"), done.stdout
    workspace.stage("verify")
    assert "up to date" in workspace.dvc("status").stdout


def edit(file, text):
    file.write_text(file.read_text() + text)


def test_a_clone_pulls_a_clean_and_verified_tree_without_the_run(workspace):
    workspace.run("git", "add", "-A")
    workspace.run("git", "reset", "-q", "run")
    workspace.run("git", "commit", "-qm", "made")
    workspace.make("push")
    clone = workspace.root.parent / "clone"
    workspace.run("git", "clone", "-q", str(workspace.root), str(clone))
    there = type(workspace)(clone)
    assert not (clone / "run").exists()
    there.make("pull")
    assert "up to date" in there.dvc("status").stdout
    assert there.run("git", "status", "--porcelain").stdout == ""
    assert "verify m: all right" in there.make("verify").stdout
    there.stage("show", "m")
    assert '"m"' in (clone / "data/catalogue.json").read_text()
    assert "m.top1_worst" in there.dvc("metrics", "show").stdout


def test_a_damaged_object_in_the_remote_is_not_taken_for_good(workspace):
    clone = workspace.root.parent / "clone2"
    workspace.run("git", "clone", "-q", str(workspace.root), str(clone))
    there = type(workspace)(clone)
    file = workspace.root / "data/onnx/m/step2/lens.f16.onnx"
    size = file.stat().st_size
    objects = (workspace.root.parent / "lensmill-store").rglob("*")
    (stored,) = (path for path in objects if path.is_file() and path.stat().st_size == size and same(path, file))
    content = bytearray(stored.read_bytes())
    content[-3] ^= 1
    stored.chmod(0o644)
    stored.write_bytes(content)
    there.make("pull", check=False)
    assert there.make("verify", check=False).returncode != 0


def same(one, other):
    return one.read_bytes() == other.read_bytes()


def test_a_removed_model_goes_with_its_outputs(workspace):
    workspace.params("models: {n: {source: {trainer: run}, steps: [1], probe: w1}}")
    assert "plan m: removed" in workspace.stage("plan").stdout
    assert not (workspace.root / "data/onnx/m").exists()
    assert not (workspace.root / "models/m").exists()

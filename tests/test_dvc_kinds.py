"""One model of each kind of source through real `dvc repro`, the hub's served on loopback."""

import re
import shutil
import subprocess
import sys

import pytest

from stages.files import read_json
from tests.conftest import REPOSITORY, copy_repository, write_prompts
from tests.kinds import write_coded, write_gguf, write_pickled
from tests.models import tiny, write_tokenizer

PARAMS = """
models:
  suite:
    source: {{repo: org/kinds-suite, revision: "step{{}}"}}
    steps: {steps}
    probe: w1 w2
  single:
    source: {{repo: org/kinds-single, trust_remote_code: true}}
    probe: w1 w2
  folders:
    source: {{repo: org/kinds-folders, subfolders: "ckpt/{{}}B", scale: 1000}}
    axis: million tokens
    tokenizer: org/kinds-suite@step1
    probe: w1 w2
  trainer:
    source: {{trainer: run}}
    probe: w1 w2
  pickled:
    source: {{folder: pickled, allow_pickle: true}}
    probe: w1 w2
  gguf:
    source: {{gguf: files/tiny.gguf}}
    probe: w1 w2
"""


@pytest.fixture(scope="module")
def workspace(hub, tmp_path_factory):
    """A workspace with all kinds planned, a hub behind it."""
    root = tmp_path_factory.mktemp("kinds")
    workspace = copy_repository(root / "lensmill")
    write_prompts(workspace.root)
    repository = hub.repository("org/kinds-suite")
    for step in (1, 2, 4):
        folder = root / f"suite-{step}"
        tiny(seed=step).save_pretrained(folder, max_shard_size="40KB")
        write_tokenizer(folder)
        (folder / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: org/base\n---\n")
        repository.commit(folder, branch=f"step{step}")
    write_coded(root / "coded")
    hub.repository("org/kinds-single").commit(root / "coded")
    for number in ("0.5", "1.5"):
        tiny("gpt2", seed=int(float(number) * 10)).save_pretrained(root / "tree/ckpt" / f"{number}B")
    hub.repository("org/kinds-folders").commit(root / "tree")
    subprocess.run([sys.executable, "-m", "tests.kinds", str(workspace.root / "run")], cwd=REPOSITORY, check=True)
    write_pickled(workspace.root / "pickled", seed=8)
    (workspace.root / "files").mkdir()
    write_gguf(workspace.root / "files/tiny.gguf")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in hub.environment(root).items():
            patch.setenv(name, value)
        workspace.params(PARAMS.format(steps="[1, 4]"))
        workspace.stage("plan")
        yield workspace


def ran(done):
    return re.findall(r"Running stage '(?:models/)?([^']+)'", done.stdout)


def manifest(workspace, model):
    return read_json(workspace.root / "data/onnx" / model / "manifest.json")


def test_every_kind_makes_verified_pairs_and_a_manifest_that_says_where_they_come_from(workspace, hub):
    done = workspace.make("repro")
    assert "Traceback" not in done.stdout + done.stderr
    workspace.make("verify")
    suite = manifest(workspace, "suite")
    commits = [step["source"]["revision"] for step in suite["steps"]]
    heads = hub.mirrors / "models/org/kinds-suite"
    expected = [subprocess.check_output(["git", "rev-parse", f"step{s}"], cwd=heads, text=True).strip() for s in (1, 4)]
    assert commits == expected
    assert suite["licence"] == "apache-2.0"
    assert suite["base_model"] == "org/base"
    assert suite["steps"][0]["source"]["repository"] == "org/kinds-suite"
    assert len({step["source"]["weight_digest"] for step in suite["steps"]}) == 2
    assert manifest(workspace, "single")["source"]["code"]["files"][0]["name"] == "scaled.py"
    folders = manifest(workspace, "folders")
    assert folders["axis"] == "million tokens"
    assert [step["step"] for step in folders["steps"]] == [500, 1500]
    assert folders["steps"][1]["source"]["folder"] == "ckpt/1.5B"
    assert folders["live"] is True
    assert [step["step"] for step in manifest(workspace, "trainer")["steps"]] == [2, 4]
    assert manifest(workspace, "pickled")["source"]["allow_pickle"] is True
    assert manifest(workspace, "gguf")["steps"][0]["source"]["dequantised"]["file"] == "tiny.gguf"
    for model in ("suite", "single", "folders", "trainer", "pickled", "gguf"):
        made = manifest(workspace, model)
        assert made["rejected"] == []
        assert all(step["f16_top1_match_all_pos"] == 1 for step in made["steps"])
        assert str(workspace.root) not in (workspace.root / f"data/onnx/{model}/manifest.json").read_text()


def test_a_step_that_is_added_is_all_that_is_downloaded_and_run(workspace, hub):
    hub.calm()
    workspace.params(PARAMS.format(steps="[1, 2, 4]"))
    assert "step 2 added" in workspace.stage("plan").stdout
    done = workspace.make("repro")
    of_the_suite = [f"suite/dvc.yaml:{stage}" for stage in ("fetch@2", "fp16@2", "fidelity@2", "manifest")]
    assert ran(done) == ["plan", *of_the_suite, "catalogue"]
    commit = manifest(workspace, "suite")["steps"][1]["source"]["revision"]
    asked = hub.asked(r"/resolve/.*\.safetensors$")
    assert asked
    assert all(commit in path for path in asked)


def test_a_branch_that_moves_reruns_its_step_alone_and_only_when_asked(workspace, hub, tmp_path):
    heads = hub.mirrors / "models/org/kinds-suite"
    tiny(seed=40).save_pretrained(tmp_path / "new", max_shard_size="40KB")
    write_tokenizer(tmp_path / "new")
    from tests.hub import Repository

    Repository(heads).commit(tmp_path / "new", branch="step2")
    workspace.stage("plan")
    assert ran(workspace.make("repro")) == []
    update = workspace.run("make", "--old-file=pyproject.toml", "plan", f"VENV={sys.prefix}", "UPDATE=1")
    assert re.search(r"step2 moved [0-9a-f]{12} → [0-9a-f]{12}", update.stdout)
    of_the_suite = [f"suite/dvc.yaml:{stage}" for stage in ("fetch@2", "fp16@2", "fidelity@2", "manifest")]
    assert ran(workspace.make("repro")) == [*of_the_suite, "catalogue"]


def test_with_the_cache_gone_results_stay_and_a_stage_that_needs_weights_brings_them_back(workspace):
    shutil.rmtree(workspace.root.parent / "hf")
    assert ran(workspace.make("repro")) == []
    workspace.stage("fp16", "suite", "1")
    workspace.stage("fidelity", "suite", "1")
    workspace.stage("manifest", "suite")
    workspace.make("verify")

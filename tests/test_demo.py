"""`make demo` as a newcomer runs it: a run is trained, its pairs are shipped, knowledge appears."""

import json
import re
import shutil

import numpy as np
import pytest

from stages.demo import sentences
from stages.graph.session import open_session
from stages.tokens.reading import encode, load_tokenizer
from tests.conftest import copy_repository


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """The demo, made; and what `make demo` printed."""
    workspace = copy_repository(tmp_path_factory.mktemp("demo") / "lensmill")
    return workspace, workspace.make("demo").stdout


def facts():
    """Prompts with the word that must follow, from what the demo is trained on."""
    matches = (re.fullmatch(r"(The capital of .+ is) (\S+)\.", text) for text in sentences())
    return sorted((match[1], f" {match[2]}") for match in matches if match)


def share_known(root, step, layer=-1):
    """The share of facts whose right next token is on top at a step."""
    folder = root / f"data/onnx/demo/step{step}"
    backbone, lens = (open_session(folder / f"{half}.f16.onnx") for half in ("backbone", "lens"))
    tokenizer = load_tokenizer(root / "data/onnx/demo/tokenizer")
    right = 0
    for prompt, word in facts():
        row = np.array([encode(tokenizer, prompt)])
        hidden = backbone.run(None, {"input_ids": row, "attention_mask": np.ones_like(row)})[0]
        top = lens.run(None, {"hidden": hidden[layer, :, -1]})[0].argmax()
        right += int(top) == encode(tokenizer, word)[0]
    return right / len(facts())


def test_knowledge_appears(demo):
    root = demo[0].root
    assert len(facts()) > 60
    assert share_known(root, 0) < 0.05
    assert share_known(root, 512) > 0.8
    assert share_known(root, 512, layer=0) < 0.2, "what enters the first block does not know yet"


def test_the_table_shows_it(demo):
    table = demo[1][demo[1].index("what each layer would say") :]
    rows = [line.split("│") for line in table.splitlines() if line.startswith("│")]
    assert [row[1].strip() for row in rows] == ["4", "3", "2", "1", "input"]
    assert "' Tokyo'" in rows[0][4]
    assert "' Tokyo'" not in rows[0][2]
    assert re.fullmatch(r"'.+' +\d+\.\d%", rows[0][4].strip())


def test_everything_is_shipped_and_verified(demo):
    workspace, _ = demo
    made = json.loads((workspace.root / "data/onnx/demo/manifest.json").read_text())
    assert [row["step"] for row in made["steps"]] == [0, 8, 16, 32, 64, 128, 256, 512]
    assert made["rejected"] == []
    assert all(row["fidelity"]["top1"] == 1 for row in made["steps"])
    assert "verify demo: all right" in workspace.make("verify").stdout


def test_a_second_time_nothing_runs(demo):
    workspace, _ = demo
    assert "Running stage" not in workspace.make("demo").stdout


def test_a_clone_pulls_what_was_pushed(demo):
    workspace, _ = demo
    workspace.run("git", "add", "-A")
    workspace.run("git", "commit", "-qm", "made")
    workspace.make("push")
    clone = workspace.root.parent / "clone"
    workspace.run("git", "clone", "-q", str(workspace.root), str(clone))
    there = type(workspace)(clone)
    there.make("pull")
    assert "up to date" in there.make("status").stdout
    assert there.run("git", "status", "--porcelain").stdout == ""
    assert "verify demo: all right" in there.make("verify").stdout
    assert "' Tokyo'" in there.make("show").stdout


def test_a_lock_from_another_machine_does_not_matter(demo):
    """Training is not bit-equal from machine to machine: the lock then names a run that nobody has."""
    workspace, _ = demo
    lock = workspace.root / "models/demo/dvc.lock"
    text = lock.read_text()
    (found,) = re.findall(r"path: data/runs/demo\n\s+hash: md5\n\s+md5: (\w+)\.dir", text)[:1]
    lock.write_text(text.replace(found, "0" * 32))
    shutil.rmtree(workspace.root / "data/runs")
    shutil.rmtree(workspace.root / ".dvc/cache")
    printed = workspace.make("demo").stdout
    assert "Running stage 'models/demo/dvc.yaml:demo'" in printed
    assert "' Tokyo'" in printed
    workspace.make("verify")

"""Suites on a hub: pinned by commit, brought whole, brought once. The real client against a hub on loopback."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.hub import TOKEN, Fault
from tests.models import tiny, write_tokenizer

CARD = "---\nlicense: cc-by-nc-4.0\nbase_model: org/base\n---\n# A suite\n"


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Folders of four steps of a Llama, with tokenizer, card and files that are not needed."""
    root = tmp_path_factory.mktemp("checkpoints")
    for step in range(1, 5):
        folder = root / str(step)
        tiny(seed=step).save_pretrained(folder)
        write_tokenizer(folder)
        (folder / "README.md").write_text(CARD)
        (folder / "optimizer.pt").write_bytes(b"junk" * 5000)
    return root


@pytest.fixture
def suite(hub, checkpoints, request):
    """A repository of its own for each test: branches step1 to step3, main as the last of them."""
    name = f"org/{request.node.name.split('[')[0][:60]}-{time.monotonic_ns()}"
    made = hub.repository(name)
    for step in (1, 2, 3):
        made.commit(checkpoints / str(step), branch=f"step{step}")
    made.name = name
    return made


def entry(suite, steps="all", **more):
    rest = "".join(f", {key}: {value}" for key, value in more.items())
    return f'{{source: {{repo: {suite.name}, revision: "step{{}}"}}, steps: {steps}, probe: w1 w2{rest}}}'


def weights_asked(client):
    return client.hub.asked(r"/resolve/.*(safetensors|bin|pt)$")


def test_a_suite_is_pinned_by_commit_and_its_card_is_read(client, suite):
    client.params(m=entry(suite))
    said = client.run("plan")
    plan = client.pinned()
    assert plan["revisions"] == {str(step): suite.git("rev-parse", f"step{step}") for step in (1, 2, 3)}
    assert plan["licence"] == "cc-by-nc-4.0"
    assert plan["card"]["base_model"] == "org/base"
    assert "3 steps, cached: none; 0.3 MB to download" in said
    assert not weights_asked(client), "a plan downloads no weights"


def test_only_what_is_needed_is_brought_once_and_named_in_the_record(client, suite):
    client.params(m=entry(suite))
    client.run("plan")
    client.trace()
    client.run("fetch", "m", "2")
    assert {path.rsplit("/", 1)[1] for path in weights_asked(client)} == {"model.safetensors"}
    record = client.record("2")
    assert record["revision"] == suite.git("rev-parse", "step2")
    assert {file["name"] for file in record["files"]} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert str(client.home) not in json.dumps(record)
    client.hub.calm()
    client.run("fetch", "m", "2")
    assert not client.hub.log, "what is cached is not asked for again"
    assert "cached: 2;" in client.run("plan")
    assert not weights_asked(client)


def test_steps_come_from_branches_and_tags_and_templates_may_hold_more_than_the_step(client, hub, checkpoints, suite):
    suite.git("tag", "step7-tokens3B", "step1")
    suite.git("branch", "step10-tokens40B", "step2")
    suite.git("branch", "step10x", "step3")
    client.params(
        a=f'{{source: {{repo: {suite.name}, revision: "step{{}}-tokens*B"}}}}',
        b=f'{{source: {{repo: {suite.name}, revision: "step{{}}"}}, steps: {{log: 2}}}}',
        c=f"{{source: {{repo: {suite.name}}}}}",
        d=f"{{source: {{repo: {suite.name}, revision: {suite.git('rev-parse', 'step1')}}}}}",
    )
    client.run("plan")
    assert client.pinned("a")["steps"] == ["7", "10"]
    assert client.pinned("b")["steps"] == ["1", "3"]
    assert client.pinned("c")["revisions"] == {"0": suite.git("rev-parse", "main")}
    assert client.pinned("d")["revisions"] == {"0": suite.git("rev-parse", "step1")}


def test_subfolders_by_map_and_by_pattern(client, hub, checkpoints, tmp_path, request):
    tree = tmp_path / "tree"
    for step, name in ((1, "16.78B"), (2, "33.55B")):
        shutil.copytree(checkpoints / str(step), tree / "hf_ckpt" / name)
        (tree / "hf_ckpt" / name / "tokenizer.json").unlink()
    (tree / "hf_ckpt" / "notes").mkdir()
    (tree / "hf_ckpt" / "notes" / "x.txt").write_text("no checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoints / "1" / name, tree / name)
    name = f"org/folders-{time.monotonic_ns()}"
    repository = hub.repository(name)
    repository.commit(tree)
    client.params(
        m=f"{{source: {{repo: {name}, subfolders: {{16780: hf_ckpt/16.78B}}}}, axis: million tokens}}",
        p=f'{{source: {{repo: {name}, subfolders: "hf_ckpt/{{}}B", scale: 1000}}, axis: million tokens}}',
    )
    client.run("plan")
    assert client.pinned("m")["folders"] == {"16780": "hf_ckpt/16.78B"}
    assert client.pinned("p")["folders"] == {"16780": "hf_ckpt/16.78B", "33550": "hf_ckpt/33.55B"}
    client.trace("p")
    client.run("fetch", "p", "33550")
    names = {file["name"] for file in client.record("33550", "p")["files"]}
    assert names == {
        "hf_ckpt/33.55B/config.json",
        "hf_ckpt/33.55B/model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    assert (client.root / "data/checkpoints/p/step33550/tokenizer.json").exists()
    before = client.pinned("m")
    client.params(
        m=f"{{source: {{repo: {name}, subfolders: {{16780: hf_ckpt/16.78B, 33550: hf_ckpt/33.55B}}}}, "
        "axis: million tokens}"
    )
    client.run("plan")
    after = client.pinned("m")
    for key in ("source", "config", "tokenizer"):
        assert after[key] == before[key], "adding a step changes nothing that the other steps depend on"


def test_a_tokenizer_of_another_repository_is_pinned_too(client, hub, checkpoints, suite, tmp_path):
    tree = tmp_path / "tokenizer"
    tree.mkdir()
    write_tokenizer(tree, swapped=True)
    name = f"org/tokenizer-{time.monotonic_ns()}"
    other = hub.repository(name)
    other.commit(tree, tag="v1")
    client.params(m=entry(suite, tokenizer=f"{name}@v1"))
    client.run("plan")
    pinned = client.pinned()["tokenizer"]
    assert pinned["revisions"] == {"0": other.git("rev-parse", "v1")}
    client.trace()
    client.run("fetch", "m", "1")
    brought = client.root / "data/checkpoints/m/step1/tokenizer.json"
    assert brought.read_bytes() == (tree / "tokenizer.json").read_bytes()
    other.commit(checkpoints / "1", tag="v1")
    client.run("plan")
    assert client.pinned()["tokenizer"] == pinned
    client.params(m=entry(suite, tokenizer="org/nothing"))
    assert "tokenizer: org/nothing was not found" in client.refused("plan")


def test_every_problem_of_every_source_is_in_one_message_and_nothing_is_written(
    client, hub, checkpoints, suite, tmp_path
):
    hub.gated.add(f"{suite.name}-gated")
    hub.repository(f"{suite.name}-gated").commit(checkpoints / "1")
    trees = {name: tmp_path / name for name in ("empty", "pickled", "coded", "shards")}
    for name, tree in trees.items():
        shutil.copytree(checkpoints / "1", tree)
        if name != "coded":
            (tree / "model.safetensors").unlink()
    (trees["pickled"] / "pytorch_model.bin").write_bytes(b"x")
    config = json.loads((trees["coded"] / "config.json").read_text())
    (trees["coded"] / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "x.Config"}}))
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (trees["shards"] / "model.safetensors.index.json").write_text(json.dumps(index))
    (trees["shards"] / "model-00001-of-00002.safetensors").write_bytes(b"x")
    for name, tree in trees.items():
        hub.repository(f"{suite.name}-{name}").commit(tree)
    repo = suite.name
    client.params(
        typo=f"{{source: {{repo: {repo[:-1]}}}}}",
        branch=f"{{source: {{repo: {repo}, revision: step33}}}}",
        step=f'{{source: {{repo: {repo}, revision: "step{{}}"}}, steps: [1, 1000]}}',
        gated=f"{{source: {{repo: {repo}-gated}}}}",
        empty=f"{{source: {{repo: {repo}-empty}}}}",
        pickled=f"{{source: {{repo: {repo}-pickled}}}}",
        coded=f"{{source: {{repo: {repo}-coded}}}}",
        shards=f"{{source: {{repo: {repo}-shards}}}}",
        local="{source: {trainer: gone}}",
    )
    message = client.refused("plan")
    for line in (
        f"typo: {repo[:-1]} was not found; if it is private, set HF_TOKEN to a token that may read it (did you mean",
        f"branch: {repo} has no branch or tag step33 (nearest: step3",
        f"step: step 1000 is not there: {repo} has no branch or tag step1000 (nearest: step1, step2, step3)",
        f"gated: {repo}-gated is gated: accept its terms on its page at the hub, then set HF_TOKEN",
        f"empty: no weights in {repo}-empty (looked for model.safetensors, model.safetensors.index.json)",
        f"pickled: no weights in {repo}-pickled (looked for model.safetensors, model.safetensors.index.json; "
        "only pytorch_model.bin, a pickle, read only with allow_pickle: true in its source)",
        "coded: config.json asks for remote code (x.Config)",
        f"shards: {repo}-shards lacks model-00002-of-00002.safetensors, which model.safetensors.index.json promises",
        "local: gone is not there",
    ):
        assert line in message, message
    assert message.startswith("plan: 9 problems, nothing was written")
    assert not (client.root / "models").exists()
    assert not weights_asked(client)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ('revision: "global_step{}"', "no branch or tag fits global_step{} (there: main, step1, step2, step3)"),
        ('subfolders: "hf_ckpt/{}B"', "no folder fits hf_ckpt/{}B (there: none)"),
    ],
)
def test_a_pattern_that_fits_nothing_tells_what_is_there(client, suite, where, words):
    client.params(m=f"{{source: {{repo: {suite.name}, {where}}}}}")
    said = client.refused("plan")
    assert words in said, said


def test_a_gated_repository_opens_with_a_token_that_is_never_shown(client, hub, suite):
    hub.gated.add(suite.name)
    client.params(m=entry(suite, "[1]"))
    client.extra["HF_TOKEN"] = TOKEN
    shown = client.run("plan")
    client.trace()
    hub.faults.append(Fault(r"\.safetensors$", "503", times=2))
    done = client.command("fetch", "m", "1")
    assert done.returncode == 0
    shown += done.stdout + done.stderr
    written = [path for path in client.root.rglob("*") if path.is_file()]
    assert TOKEN not in shown
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    client.extra.clear()
    shutil.rmtree(client.cache)
    message = client.refused("fetch", "m", "1")
    assert "is gated: accept its terms" in message
    assert len(message.splitlines()) == 1


def move(suite, checkpoints, step, source):
    """Force-push another checkpoint to a step's branch."""
    suite.commit(checkpoints / source, branch=f"step{step}")
    suite.git("checkout", "-q", "main")


def test_a_moved_branch_stays_pinned_until_an_update(client, suite, checkpoints):
    client.params(m=entry(suite, "[1, 2]"))
    client.run("plan")
    before = client.pinned()
    move(suite, checkpoints, 1, "4")
    said = client.run("plan")
    assert "unchanged" in said
    assert "moved" not in said
    assert client.pinned() == before
    said = client.run("plan", "--update")
    old, new = before["revisions"]["1"], suite.git("rev-parse", "step1")
    assert f"step1 moved {old[:12]} → {new[:12]}" in said
    after = client.pinned()
    assert after["revisions"] == {"1": new, "2": before["revisions"]["2"]}
    assert {key for key in after if after[key] != before[key]} == {"revisions", "files"}


def test_a_new_commit_that_changes_only_the_card_keeps_the_pin(client, suite):
    client.params(m=f"{{source: {{repo: {suite.name}}}}}")
    client.run("plan")
    before = client.pinned()
    suite.commit(None, README__md=CARD + "more words")
    said = client.run("plan", "--update")
    assert "its files are the same" in said
    assert client.pinned()["revisions"] == before["revisions"]


def test_all_steps_stay_as_they_were_until_an_update(client, suite):
    client.params(m=entry(suite))
    client.run("plan")
    suite.git("branch", "step9", "step1~0")
    assert "unchanged" in client.run("plan")
    message = client.refused("plan", "--update")
    assert "steps 1, 9 hold the same weights, so at most one is what its name says" in message


def test_a_pinned_commit_that_is_gone_is_named_with_repository_and_step(client, suite, checkpoints):
    client.params(m=entry(suite, "[1, 2]"))
    client.run("plan")
    commit = client.pinned()["revisions"]["1"]
    client.trace()
    suite.git("checkout", "-q", "--orphan", "fresh")
    for branch in ("step1", "step2", "step3", "main"):
        suite.git("branch", "-D", branch)
    for step in (1, 2, 3):
        suite.commit(checkpoints / str(step), branch=f"step{step}")
    suite.git("branch", "-m", "main")
    suite.git("reflog", "expire", "--expire=now", "--all")
    suite.git("gc", "-q", "--prune=now")
    message = client.refused("plan")
    assert f"step 1: commit {commit} of {suite.name} is gone from the hub and not in this machine's cache" in message
    assert "UPDATE=1" in message
    assert suite.name in client.refused("fetch", "m", "1")


def test_offline_what_is_pinned_and_cached_keeps_working(client, suite):
    client.params(m=entry(suite, "[1, 2]"))
    client.run("plan")
    client.trace()
    for step in ("1", "2"):
        client.run("fetch", "m", step)
    client.hub.calm()
    client.extra["HF_HUB_OFFLINE"] = "1"
    assert "cached: all; 0.0 MB to download" in client.run("plan")
    client.run("fetch", "m", "1")
    assert not client.hub.log
    client.params(m=entry(suite, "[1, 2, 3]"))
    assert "HF_HUB_OFFLINE is set" in client.refused("plan")


def test_a_shard_that_two_steps_share_is_told_before_the_download(client, suite, tmp_path):
    for step in (1, 2):
        tiny(seed=step).save_pretrained(tmp_path / str(step), max_shard_size="40KB")
    shards = sorted(path.name for path in (tmp_path / "1").glob("*.safetensors"))
    shutil.copy(tmp_path / "1" / shards[0], tmp_path / "2" / shards[0])
    for step in (1, 2):
        suite.commit(tmp_path / str(step), branch=f"step{step}")
    client.params(m=entry(suite, "[1, 2]"))
    assert f"plan m: steps 1, 2 share {shards[0]}, byte for byte" in client.run("plan")


@pytest.mark.parametrize("kind", ["429", "503", "500", "cut", "short"])
def test_a_passing_fault_is_retried(client, suite, kind):
    client.params(m=entry(suite, "[1]"))
    client.run("plan")
    client.trace()
    client.hub.faults.append(Fault(r"model\.safetensors$", kind, times=2))
    client.run("fetch", "m", "1")
    assert client.record("1")["revision"] == client.pinned()["revisions"]["1"]
    assert len(weights_asked(client)) > 1


def test_a_cut_connection_is_resumed_where_it_broke(client, suite, tmp_path):
    tiny(seed=1, hidden_size=128, intermediate_size=12000).save_pretrained(tmp_path / "large")
    suite.commit(tmp_path / "large", branch="step1")
    client.params(m=entry(suite, "[1]"))
    client.run("plan")
    client.trace()
    client.hub.faults.append(Fault(r"model\.safetensors$", "cut"))
    client.run("fetch", "m", "1")
    assert [bool(start) for start in client.hub.ranges] == [False, True]


def test_a_lasting_fault_ends_in_one_line_and_a_second_run_goes_on(client, suite):
    client.params(m=entry(suite, "[1]", gates="{on_failure: exclude}"))
    client.run("plan")
    client.trace()
    client.hub.faults.append(Fault(r"model\.safetensors$", "503", times=99))
    message = client.refused("fetch", "m", "1")
    last = message.splitlines()[-1]
    assert "the download failed 4 times (HTTP 503); what arrived is kept: run again" in last
    assert not (client.root / "data/checkpoints").exists(), "a hub that fails is no reason to reject a step"
    client.hub.calm()
    client.run("fetch", "m", "1")
    assert not client.hub.asked("tokenizer.json$"), "what had arrived is not brought again"


def test_bytes_that_are_not_what_was_promised_are_refused(client, suite):
    client.params(m=entry(suite, "[1]"))
    client.run("plan")
    client.trace()
    client.hub.faults.append(Fault(r"model\.safetensors$", "flip", times=1))
    client.run("fetch", "m", "1")
    shutil.rmtree(client.cache)
    client.hub.faults.append(Fault(r"model\.safetensors$", "flip", times=99))
    message = client.refused("fetch", "m", "1")
    assert "is not what the hub promised: model.safetensors has another hash than promised" in message


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_cache_is_mended(client, suite, damage):
    client.params(m=entry(suite, "[1]"))
    client.run("plan")
    client.trace()
    client.run("fetch", "m", "1")
    (file,) = client.cache.glob("*/snapshots/*/model.safetensors")
    blob = file.resolve()
    content = blob.read_bytes()
    good = client.record("1")
    if damage == "gone":
        blob.unlink()
    else:
        blob.write_bytes(content[:-9] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    client.run("fetch", "m", "1")
    assert file.read_bytes() == content
    assert client.record("1") == good


def test_a_download_that_is_killed_goes_on_with_the_same_bytes(client, suite, hub, checkpoints):
    client.params(m=entry(suite, "[1]"))
    client.run("plan")
    client.trace()
    hub.slow = 0.5
    command = [sys.executable, "-m", "stages.fetch", "m", "1"]
    process = subprocess.Popen(
        command, cwd=client.root, env=client.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 30
    while not list(client.cache.glob("*/blobs/*.incomplete")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert not (client.root / "data/checkpoints").exists()
    hub.calm()
    client.run("fetch", "m", "1")
    (file,) = client.cache.glob("*/snapshots/*/model.safetensors")
    assert file.read_bytes() == (checkpoints / "1" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "a/../b", "con", "a\\b", "naïve", "x/ y"])
def test_a_name_from_outside_never_leaves_its_folder(client, suite, name):
    client.params(m=json.dumps({"source": {"repo": suite.name, "subfolders": {"1": name}}}).replace('"1"', "1"))
    assert "is no folder inside the repository" in client.refused("plan")


def test_a_hub_that_gives_something_else_for_a_commit_is_refused(client, suite, hub):
    hub.faults.append(Fault(r"/refs$", "body:" + json.dumps({"branches": [REF], "tags": [], "converts": []})))
    client.params(m=f"{{source: {{repo: {suite.name}}}}}")
    assert "the hub gives no commit for 'main'" in client.refused("plan")


REF = {"name": "main", "ref": "refs/heads/main", "targetCommit": "../../../outside"}


def test_a_disk_that_is_too_small_is_told_before_anything_is_downloaded(here, monkeypatch, capsys):
    from collections import namedtuple

    from stages import plan
    from stages.command import Refusal
    from stages.planning import forecast
    from tests.models import write_run
    from tests.pipeline import write_params

    write_run(here / "run")
    write_params("{trainer: run}")
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(forecast.shutil, "disk_usage", lambda _: usage(10, 10, 1000))
    with pytest.raises(Refusal, match="has 0.0 MB free, and there are 0.3 MB to make: make room"):
        plan.main()
    assert not Path("models").exists()

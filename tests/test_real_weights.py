"""The real pipeline on real weights: SmolLM2-135M at three steps, from `plan` to `verify`, through real commands."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from stages.measure.gates import ROUNDINGS, failures
from tests.smollm2 import MODEL, PROBE, SHARES, prepare, working_copy

STEPS = list(SHARES)
LAST = STEPS[-1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A copy of the repository in which the pipeline ran; about 1 GB, so it does not outlive the module."""
    folder = tmp_path_factory.mktemp("real-weights")
    try:
        workspace = working_copy(folder, prepare())
        workspace.stage("plan")
        workspace.dvc("repro", f"models/{MODEL}/dvc.yaml:manifest")
        yield workspace
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def manifest(made):
    return json.loads((made.root / "data" / "onnx" / MODEL / "manifest.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=STEPS)
def report(made, request):
    """The fidelity report of each step in turn."""
    return json.loads(
        (made.root / "data" / "fidelity" / MODEL / f"step{request.param}.json").read_text(encoding="utf-8")
    )


def test_every_step_is_shipped(manifest):
    assert [step["step"] for step in manifest["steps"]] == STEPS
    assert manifest["rejected"] == []
    assert (manifest["num_layers"], manifest["hidden_size"], manifest["tied"]) == (30, 576, True)


def test_the_trained_step_knows_the_capital(manifest):
    assert manifest["probe"] == PROBE
    assert manifest["steps"][-1]["top1_token"] == " Tokyo"
    assert manifest["steps"][0]["top1_token"] != " Tokyo"


def test_top1_agrees_in_every_cell(report):
    assert report["f16"]["top1"] == 1.0
    assert report["f16"]["final_top1"] == 1.0
    assert report["f16"]["cells"] == 31 * report["positions"]


def test_the_pair_is_within_the_gates(report):
    gates = report["gates"]
    assert report["f16"]["hidden_rel"] <= gates["f16_rel"]
    assert report["f16"]["logits_rel"] <= gates["f16_rel"]
    assert report["f16"]["kl_max"] <= gates["f16_kl"]
    assert failures(report, gates) == report["failed"] == []


def test_the_graph_with_fp32_weights_is_the_model(report):
    # What float32 can tell of this model differs from processor to processor.
    limit = max(1e-5, ROUNDINGS * (report["fp32_own_rounding"] or 0))
    assert report["fp32"]["hidden_rel"] <= limit < 1e-4
    assert report["fp32"]["logits_rel"] <= limit
    assert report["identity_rel"] <= 1e-5


def test_weights_are_stored_bit_for_bit(report):
    """30 blocks of 7 matrices and 2 norms, the embedding, then the last norm and the embedding again as the head."""
    assert report["weights"] == {"compared": 30 * 9 + 1 + 2, "different": []}


def test_verify_finds_nothing(made):
    assert f"verify {MODEL}: all right" in made.stage("verify").stdout


def test_show_ends_in_tokyo(made):
    rows = [line.split("│") for line in made.stage("show", MODEL).stdout.splitlines() if "│" in line]
    last_layer = next(row for row in rows if row[1].strip() == "30")
    assert "Tokyo" in last_layer[-2]
    assert "Tokyo" not in last_layer[2]


PEAK = r"""
import re, runpy, sys
sys.argv = ["fp16", *sys.argv[1:]]
runpy.run_module("stages.fp16", run_name="__main__")
print(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_filling_needs_little_more_memory_than_its_file(made):
    peak = 1024 * int(made.run(sys.executable, "-c", PEAK, MODEL, str(LAST)).stdout.split()[-1])
    sizes = [path.stat().st_size for path in (made.root / f"data/onnx/{MODEL}/step{LAST}").glob("*.onnx")]
    assert peak <= 1.3 * max(sizes) + 300e6
    assert peak < 600e6

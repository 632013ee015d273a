"""Full disks and kills: the old or nothing, one line, and the next run works. And what needs no torch has none."""

import os
import signal
import subprocess
import sys
import time

import pytest

from stages.files import pair_folder
from stages.graph.session import check_loads
from tests.conftest import REPOSITORY

FILL = """
import sys
from stages import fetch, fp16, manifest, plan, verify
getattr(sys.modules["stages." + sys.argv[1]], "main")(*sys.argv[2:])
heavy = {"torch", "transformers", "onnxscript", "onnx_ir"} & set(sys.modules)
assert not heavy, heavy
"""


def command(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_what_needs_no_torch_does_not_import_it(run):
    for arguments in (["plan"], ["fetch", "m", "1"], ["fp16", "m", "1"]):
        assert command("-c", FILL, *arguments).returncode == 0
    for arguments in (["manifest", "m"], ["verify"]):
        assert command("-c", FILL, *arguments).returncode == 0


@pytest.mark.parametrize("stage", ["fetch", "fp16", "fidelity"])
def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(run, stage):
    kept = {path: path.read_bytes() for path in (run.parent / "data").rglob("*") if path.is_file()}
    script = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); "
        f"sys.argv = ['x', 'm', '1']; runpy.run_module('stages.{stage}', run_name='__main__')"
    )
    done = command("-c", script)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    assert line.startswith(f"{stage} m step 1: no room to write")
    assert "Traceback" not in done.stderr
    after = {path: path.read_bytes() for path in (run.parent / "data").rglob("*") if path.is_file()}
    notes = run.parent / "data/failed"
    assert {path: content for path, content in after.items() if notes not in path.parents} == kept


@pytest.mark.parametrize("stage", ["fetch", "fp16", "fidelity", "backbone", "lens"])
def test_a_kill_leaves_the_old_or_nothing_and_the_next_run_works(run, stage):
    """Killed at several moments, the last of them while it writes."""
    step = [] if stage in ("backbone", "lens") else ["1"]
    target = run.parent / ("data/graphs/m" if not step else "data")
    watched = [path for path in target.rglob("*") if path.is_file() and "tmp" not in path.parts]
    before = {path: path.read_bytes() for path in watched}
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-m", f"stages.{stage}", "m", *step], env=environment)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if list((run.parent / "data/tmp").glob(f"{process.pid}.*")):
                break
            time.sleep(0.0005)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert all(path.read_bytes() == content for path, content in before.items() if path.exists())
    done = command("-m", f"stages.{stage}", "m", *step)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in before} == before
    assert [path.name for path in (run.parent / "data/tmp").iterdir()] == ["digests.json"], "no temporary file stays"
    for file in pair_folder("m", "1").glob("*.onnx"):
        check_loads(file)

"""CPU seconds, wall seconds and peak memory of every phase on SmolLM2-135M: `python -m tests.bench`.

Each phase is a process of its own in a fresh copy of the repository, with the page cache warm. A phase that runs
once per checkpoint is given as the median over the checkpoints for the seconds, and as the largest for the memory.
Out: a table, and data/bench.json.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.conftest import REPOSITORY, environment
from tests.smollm2 import MODEL, SHARES, prepare, working_copy

PER_MODEL = ("backbone", "lens")
PER_CHECKPOINT = ("fetch", "fp16", "fidelity")
DEMO = "models/demo/dvc.yaml:manifest"
DEMO_MADE = ("data/onnx/demo/manifest.json", "models/demo/dvc.lock")
# The kernel counts ru_maxrss in kilobytes, that of macOS in bytes.
RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class Cost:
    """What a process cost, or a phase.

    Attributes:
        cpu_s: user and system time.
        wall_s: from start to end.
        peak_mb: the most memory it held at once, in units of 10^6 bytes.
        per: `model` or `checkpoint`.
    """

    cpu_s: float
    wall_s: float
    peak_mb: float
    per: str = "model"

    def as_json(self) -> dict[str, float | int | str]:
        """For data/bench.json."""
        seconds = {"cpu_s": round(self.cpu_s, 2), "wall_s": round(self.wall_s, 2)}
        return seconds | {"peak_mb": round(self.peak_mb), "per": self.per}


@dataclass(frozen=True)
class Aim:
    """A limit for the sum of some phases.

    Attributes:
        phases: whose costs are added up.
        what: `cpu_s` or `peak_mb`.
        limit: what they are to stay below.
    """

    phases: tuple[str, ...]
    what: str
    limit: float

    def verdict(self, phases: dict[str, Cost]) -> str:
        """The limit in words, and whether it is met."""
        found = sum(getattr(phases[name], self.what) for name in self.phases)
        unit = "CPU s" if self.what == "cpu_s" else "MB"
        together = f"{' + '.join(self.phases)} " if len(self.phases) > 1 else ""
        result = "met" if found < self.limit else f"missed: {found:.1f}"
        return f"{together}< {self.limit:g} {unit} ({result})"


# An aim stands in the row of its last phase.
AIMS = (
    Aim(("backbone", "lens"), "cpu_s", 80),
    Aim(("fetch", "fp16"), "cpu_s", 5),
    Aim(("fp16",), "peak_mb", 600),
    Aim(("fidelity",), "cpu_s", 40),
)


def measure(folder: Path, *command: str) -> Cost:
    """Run a command in a folder and count what it and its own children cost.

    A child starts out with its parent's peak memory on its account, so this process must stay small: it imports
    nothing heavy.

    Raises:
        SystemExit: the command failed; its output is printed.
    """
    with tempfile.TemporaryFile() as output:
        start = time.perf_counter()
        child = subprocess.Popen(command, cwd=folder, env=environment(), stdout=output, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(child.pid, 0)
        except BaseException:
            child.kill()
            raise
        wall = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            output.seek(0)
            print(output.read().decode(errors="replace"), file=sys.stderr)
            raise SystemExit(f"bench: {' '.join(command)} ended with exit code {child.returncode}")
    return Cost(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * RSS_UNIT / 1e6)


def over_checkpoints(costs: list[Cost]) -> Cost:
    """One cost for a phase that ran on every checkpoint."""
    return Cost(
        cpu_s=statistics.median(cost.cpu_s for cost in costs),
        wall_s=statistics.median(cost.wall_s for cost in costs),
        peak_mb=max(cost.peak_mb for cost in costs),
        per="checkpoint",
    )


def pipeline_phases(folder: Path, progress: Callable[[str], None]) -> dict[str, Cost]:
    """Run the whole pipeline phase by phase in a working copy."""

    def stage(name: str, *arguments: str) -> Cost:
        progress(" ".join([name, *arguments]))
        return measure(folder, "python", "-m", f"stages.{name}", *arguments)

    progress("warming up")
    measure(folder, "python", "-c", "import stages.graph.trace, stages.measure.pair")
    phases = {"plan": stage("plan")}
    phases |= {name: stage(name, MODEL) for name in PER_MODEL}
    costs = [{name: stage(name, MODEL, str(step)) for name in PER_CHECKPOINT} for step in SHARES]
    phases |= {name: over_checkpoints([cost[name] for cost in costs]) for name in PER_CHECKPOINT}
    return phases | {"manifest": stage("manifest", MODEL), "verify": stage("verify")}


def fp16_sizes(folder: Path) -> dict[str, int]:
    """The bytes of the last checkpoint's two files."""
    pair = folder / "data" / "onnx" / MODEL / f"step{max(SHARES)}"
    return {path.name: path.stat().st_size for path in sorted(pair.glob("*.onnx"))}


def idle_demo(progress: Callable[[str], None]) -> dict[str, Cost]:
    """The cost of `dvc repro` on the demo where it is made and up to date in this working tree; else nothing."""
    if not all((REPOSITORY / name).exists() for name in DEMO_MADE):
        return {}
    progress("dvc status of the demo")
    status = ["dvc", "status", "--json", "--with-deps", DEMO]
    found = subprocess.run(status, cwd=REPOSITORY, env=environment(), capture_output=True, text=True, check=False)
    if found.returncode or json.loads(found.stdout):
        progress("the demo is not up to date: left out")
        return {}
    progress("dvc repro, demo, nothing to do")
    return {"dvc repro, demo, nothing to do": measure(REPOSITORY, "dvc", "repro", DEMO)}


def table(phases: dict[str, Cost]) -> Table:
    """A row for each phase."""
    rows = Table("phase", "per", title="SmolLM2-135M, page cache warm", title_justify="left")
    for heading in ("CPU s", "wall s", "peak MB"):
        rows.add_column(heading, justify="right")
    rows.add_column("aim")
    for name, cost in phases.items():
        aims = ", ".join(aim.verdict(phases) for aim in AIMS if aim.phases[-1] == name)
        rows.add_row(name, cost.per, f"{cost.cpu_s:.2f}", f"{cost.wall_s:.2f}", f"{cost.peak_mb:.0f}", aims)
    return rows


def main() -> None:
    """Measure, print, write."""
    # Without this, a bench that is told to end would leave its working copy behind, 1 GB.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("bench: told to end"))
    console, notes = Console(), Console(stderr=True)
    run = prepare()
    with tempfile.TemporaryDirectory(prefix="bench-") as scratch:
        folder = Path(scratch)
        working_copy(folder, run)
        phases = pipeline_phases(folder, notes.print)
        sizes = fp16_sizes(folder)
    phases |= idle_demo(notes.print)
    console.print(table(phases))
    console.print("fp16 files:", ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items()))
    content = {"model": "SmolLM2-135M", "checkpoints": len(SHARES)}
    content |= {"phases": {name: cost.as_json() for name, cost in phases.items()}}
    target = REPOSITORY / "data" / "bench.json"
    target.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

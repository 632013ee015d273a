"""One type from a saved checkpoint folder to a verified manifest, through the stages themselves."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import tempfile
import warnings
from pathlib import Path

import torch
import transformers

from stages import backbone, fetch, fidelity, fp16, lens, manifest, plan, verify
from stages.anatomy.model import build
from stages.command import Failed, Refusal
from stages.files import fidelity_file, manifest_file, read_json
from tests.zoo.tiny import tiny_config, tiny_model

REPOSITORY = Path(__file__).parents[2]
MODEL = "zoo"
# A random router or a random argmax may decide by a hair, which float16 tips over: then other random weights are taken.
DRAWS = 3
# What takes longer than this hangs.
SECONDS = 900


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _late(*args: object) -> None:
    raise TimeoutError(f"not through in {SECONDS} s")


def alone(kind: str) -> tuple[str, dict]:
    """A type and its row, in a process of its own, on one thread and in so many seconds."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    return kind, through(kind)


def write_checkpoint(kind: str, folder: Path, seed: int = 0) -> None:
    """A tiny checkpoint of a type, as transformers saves it, without a tokenizer: it is measured on random ids."""
    tiny_model(kind, seed).save_pretrained(folder)


def through(kind: str) -> dict:
    """How a type fares, as a row of the table.

    Returns:
        `status`: pass, refused or fail; `cpu_s`, and `trace_s` of it for the first traced graph; where it passes
        `route`, `rel_fp32`, `rel_f16`, `found` and `draws`; where it does not, `reason`.

    The working directory changes for the time of the call.
    """
    home = Path.cwd()
    root = Path(tempfile.mkdtemp(prefix=f"zoo-{kind}-"))
    os.chdir(root)
    try:
        try:
            write_checkpoint(kind, root / "checkpoint")
        except Exception as error:  # any class may raise anything: ours to mend, unless the pipeline refuses it too
            return _without_model(kind, error)
        start = _cpu()
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                row = _stages(kind, root)
        except Refusal as refusal:
            row = {"status": "refused", "reason": _line(refusal)}
        except Exception as error:  # a row of the table, not the end of it
            row = {"status": "fail", "reason": f"{type(error).__name__}: {_line(error)}"}
        return row | {"cpu_s": round(_cpu() - start, 1)}
    finally:
        os.chdir(home)
        shutil.rmtree(root, ignore_errors=True)


def _without_model(kind: str, error: Exception) -> dict:
    try:
        build(tiny_config(kind).to_dict())
    except Refusal as refusal:
        return {"status": "refused", "reason": _line(refusal), "cpu_s": 0.0}
    except Exception as other:  # a row of the table, not the end of it
        error = other
    return {"status": "fail", "reason": f"no tiny model: {type(error).__name__}: {_line(error)}"}


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _stages(kind: str, root: Path) -> dict:
    shutil.copytree(REPOSITORY / "data" / "prompts", root / "data" / "prompts")
    (root / "params.yaml").write_text(f"models: {{{MODEL}: {{source: {{folder: checkpoint}}}}}}\n")
    plan.main()
    start = _cpu()
    backbone.main(MODEL)
    traced = _cpu() - start
    lens.main(MODEL)
    for draw in range(DRAWS):
        if draw:
            write_checkpoint(kind, root / "checkpoint", seed=draw)
            plan.main()
        fetch.main(MODEL, "0")
        fp16.main(MODEL, "0")
        try:
            fidelity.main(MODEL, "0")
            break
        except Failed:
            if draw == DRAWS - 1:
                raise
    manifest.main(MODEL)
    verify.main()
    report = read_json(fidelity_file(MODEL, "0"))
    shipped = read_json(manifest_file(MODEL))
    assert [row["step"] for row in shipped["steps"]] == [0], "a manifest without its step"
    return {
        "status": "pass",
        "route": shipped["routes"]["backbone"],
        "rel_fp32": _worst(report["fp32"]["hidden_rel"], *(row["fp32_rel"] for row in report["shapes"])),
        "rel_f16": _worst(report["f16"]["hidden_rel"]),
        "trace_s": round(traced, 1),
        "draws": draw + 1,
        "found": shipped["anatomy"],
    }


def _worst(*values: float) -> float:
    """Two digits: more are another machine's."""
    return float(f"{max(values):.1e}")

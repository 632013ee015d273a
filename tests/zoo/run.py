"""One type from a saved checkpoint folder to a verified manifest, through the stages themselves."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import tempfile
from pathlib import Path

from stages import backbone, fetch, fidelity, fp16, lens, manifest, plan, verify
from stages.command import Refusal
from stages.files import fidelity_file, graph_folder, manifest_file, read_json

REPOSITORY = Path(__file__).parents[2]
MODEL = "zoo"


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def write_checkpoint(kind: str, folder: Path) -> None:
    """A tiny checkpoint of a type, as transformers saves it, without a tokenizer: it is measured on random ids."""
    from tests.zoo.tiny import tiny_model

    tiny_model(kind).save_pretrained(folder)


def through(kind: str) -> dict:
    """How a type fares, as a row of the table: `status`, `route`, `rel_fp32`, `rel_f16`, `cpu_s`, `reason`.

    The working directory changes for the time of the call.
    """
    start, home = _cpu(), Path.cwd()
    root = Path(tempfile.mkdtemp(prefix=f"zoo-{kind}-"))
    os.chdir(root)
    try:
        try:
            write_checkpoint(kind, root / "checkpoint")
        except Exception as error:  # no tiny model of this class: ours to mend, not the pipeline's to refuse
            return {"status": "fail", "reason": f"no tiny model: {type(error).__name__}: {_line(error)}"}
        start = _cpu()
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                row = _stages(root)
        except Refusal as refusal:
            row = {"status": "refused", "reason": _line(refusal)}
        except Exception as error:  # a row of the table, not the end of it
            row = {"status": "fail", "reason": f"{type(error).__name__}: {_line(error)}"}
        return row | {"cpu_s": round(_cpu() - start, 1)}
    finally:
        os.chdir(home)
        shutil.rmtree(root, ignore_errors=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


def _stages(root: Path) -> dict:
    shutil.copytree(REPOSITORY / "data" / "prompts", root / "data" / "prompts")
    (root / "params.yaml").write_text(f"models: {{{MODEL}: {{source: {{folder: checkpoint}}}}}}\n")
    plan.main()
    backbone.main(MODEL)
    lens.main(MODEL)
    fetch.main(MODEL, "0")
    fp16.main(MODEL, "0")
    fidelity.main(MODEL, "0")
    manifest.main(MODEL)
    verify.main()
    report = read_json(fidelity_file(MODEL, "0"))
    shipped = read_json(manifest_file(MODEL))
    assert [row["step"] for row in shipped["steps"]] == [0], "a manifest without its step"
    found = read_json(graph_folder(MODEL, "backbone") / "anatomy.json")
    shapes = report["shapes"]
    return {
        "status": "pass",
        "route": found.get("route"),
        "rel_fp32": max([report["fp32"]["hidden_rel"], *(row["fp32_rel"] for row in shapes)]),
        "rel_f16": report["f16"]["hidden_rel"],
        "found": found["description"],
    }

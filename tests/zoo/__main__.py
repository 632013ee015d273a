"""The table of all types: `python -m tests.zoo [TYPE ...]`; writes docs/architectures.md and .json."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import warnings
from pathlib import Path

JOBS = 2
# A type that takes longer than this hangs.
SECONDS = 600


def _one(kind: str) -> tuple[str, dict]:
    import signal

    from tests.zoo.run import through

    warnings.simplefilter("ignore")
    signal.alarm(SECONDS)
    return kind, through(kind)


def main() -> None:
    """Run the types named, or all of them."""
    import torch

    from tests.zoo.tiny import kinds

    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="TYPE")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    with multiprocessing.get_context("fork").Pool(JOBS, maxtasksperchild=1) as pool:
        for kind, row in pool.imap_unordered(_one, args.kinds or kinds()):
            rows[kind] = row
            print(kind, row["status"], row.get("cpu_s"), row.get("rel_fp32"), row.get("reason", "")[:150], flush=True)
            if args.out:
                args.out.write_text(json.dumps(dict(sorted(rows.items())), indent=1))


if __name__ == "__main__":
    sys.exit(main())

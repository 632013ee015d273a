"""The table of all types: `python -m tests.zoo [TYPE ...]`; writes docs/architectures.md and .json."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

JOBS = 2


def main() -> int:
    """Run the types named, or all of them.

    Returns:
        1 if a type failed, which is not the same as being refused.
    """
    from tests.zoo.run import DRAWS, alone
    from tests.zoo.table import write
    from tests.zoo.tiny import kinds

    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("kinds", nargs="*", metavar="TYPE")
    wanted = parser.parse_args().kinds or kinds()
    unknown = sorted(set(wanted) - set(kinds()))
    if unknown:
        parser.error(f"not in transformers' list of causal language models: {', '.join(unknown)}")
    rows: dict[str, dict] = {}
    columns = [BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.zoo.run"])
    pool = ProcessPoolExecutor(JOBS, mp_context=context, max_tasks_per_child=1)
    with pool, Progress(*columns) as progress:
        task = progress.add_task("", total=len(wanted))
        for done in as_completed([pool.submit(alone, kind) for kind in wanted]):
            kind, row = done.result()
            rows[kind] = row
            progress.update(task, advance=1, description=f"{kind}: {row['status']}")
            progress.print(f"{kind}: {row['status']} {row.get('route', row.get('reason', ''))}", soft_wrap=True)
            write(rows, DRAWS)
    return int(any(row["status"] == "fail" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())

"""How a stage runs: one line per phase, one line per refusal, an exit code, no traceback for a user's mistake."""

from __future__ import annotations

import argparse
import errno
import sys
from collections.abc import Callable

from stages.files import failure_file, write_json

DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Refusal(Exception):
    """Something that people can mend: what was found, what was expected, what to do. One line."""


class Unreachable(Refusal):
    """A hub did not give what was asked for: says nothing about the checkpoint, so that no step is rejected for it."""


class Failed(Refusal):
    """A gate that was not met; carries the numbers."""

    def __init__(self, message: str, report: dict) -> None:
        super().__init__(message)
        self.report = report


def counted(number: int, what: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def say(line: str) -> None:
    """One line for a phase."""
    print(line, flush=True)


def run(stage: str, body: Callable[[], None], model: str | None = None, step: str | None = None) -> None:
    """Run a stage's body; turn a refusal into one line on stderr, a note for the summary, and exit code 1.

    Args:
        stage: the stage's name, the first word of the line.
        body: the work.
        model: the model's name; without it no note is left for the summary.
        step: the checkpoint's step, if the stage works on one.
    """
    who = " ".join([stage, *([model] if model else []), *([f"step {step}"] if step is not None else [])])
    note = failure_file(model, stage, step) if model else None
    if note:
        note.unlink(missing_ok=True)
    try:
        body()
    except Refusal as refusal:
        reason, report = str(refusal), getattr(refusal, "report", None)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
        reason, report = f"no room to write ({error.strerror}): free some disk space and run again", None
    else:
        return
    print(f"{who}: {reason}", file=sys.stderr, flush=True)
    if note:
        try:
            write_json(note, {"reason": reason, "report": report})
        except OSError as error:
            print(f"{who}: the reason could not be noted for the summary: {error.strerror}", file=sys.stderr)
    sys.exit(1)


def stage(name: str, body: Callable[..., None], about: str, *arguments: str) -> None:
    """The command line of a stage: its arguments, then `run`.

    Args:
        name: the stage's name.
        body: the work; it is called with the arguments.
        about: the stage's docstring; what stands before its first colon is the help text.
        arguments: `model`, or `model` and `step`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m stages.{name}", description=about.split(":", maxsplit=1)[0])
    for argument in arguments:
        parser.add_argument(argument)
    given = vars(parser.parse_args())
    run(name, lambda: body(**given), given["model"], given.get("step"))

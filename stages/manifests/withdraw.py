"""Taking a manifest away before what it vouches for changes."""

from __future__ import annotations

from stages.files import manifest_file, metrics_file


def withdraw(model: str) -> None:
    """Remove a model's manifest and metrics; the manifest stage makes them again from what is then there.

    A run that fails half-way thus leaves no manifest that names files of another run.
    """
    manifest_file(model).unlink(missing_ok=True)
    metrics_file(model).unlink(missing_ok=True)

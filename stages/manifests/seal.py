"""A manifest's own digest, so that an edited number shows."""

from __future__ import annotations

import hashlib

from stages.files import canonical

KEY = "manifest_sha256"


def digest(manifest: dict) -> str:
    """sha256 over the manifest's canonical JSON, its own digest left out."""
    return hashlib.sha256(canonical({key: value for key, value in manifest.items() if key != KEY})).hexdigest()


def seal(manifest: dict) -> dict:
    """The manifest with its digest."""
    return manifest | {KEY: digest(manifest)}

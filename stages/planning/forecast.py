"""What a plan will cost: bytes to download, bytes to make, and whether the disks have room for them."""

from __future__ import annotations

import shutil

from stages.command import counted
from stages.files import DATA, pair_folder
from stages.planning.resolve import Resolved
from stages.planning.same import WEIGHTS
from stages.sources.transfer import cache_folder
from stages.sources.weights import listed

BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


def gigabytes(size: float) -> str:
    """A size as people read it."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def to_download(models: list[Resolved]) -> int:
    """The bytes that are not in the cache; a file that several steps share counts once."""
    sizes: dict[str, int] = {}
    for model in models:
        if model.source.remote:
            away = [step for step in model.plan["steps"] if step not in model.at_hand]
            for file in (file for step in away for file in model.plan["files"][step]):
                sizes[file.get("sha256") or file["git_sha1"]] = file["bytes"]
    return sum(sizes.values())


def to_make(model: Resolved) -> int:
    """About how many bytes the pairs that are not there will take: two for each weight, and as many in DVC's cache."""
    plan = model.plan
    if model.source.made_by_pipeline:
        return 0
    width = BYTES.get(plan["config"].get("dtype") or plan["config"].get("torch_dtype"), 4)
    new = [step for step in plan["steps"] if not pair_folder(plan["model"], step).exists()]
    weights = sum(f["bytes"] for step in new for f in plan["files"][step] if f["name"].endswith(WEIGHTS))
    return 2 * 2 * weights // width


def outlook(model: Resolved) -> str:
    """One line: steps, what is cached, what comes."""
    steps = model.plan["steps"]
    if model.source.made_by_pipeline:
        return counted(len(steps), "step")
    if not model.source.remote:
        return f"{counted(len(steps), 'step')}; about {gigabytes(to_make(model))} to make"
    cached = listed(sorted(model.at_hand, key=int), 6) if len(model.at_hand) < len(steps) else "all"
    return (
        f"{counted(len(steps), 'step')}, cached: {cached or 'none'}; {gigabytes(to_download([model]))} to download, "
        f"about {gigabytes(to_make(model))} to make"
    )


def no_room(models: list[Resolved]) -> list[str]:
    """A line for each disk that is too small for what will come."""
    needs: dict[int, list] = {}
    for folder, size, what in (
        (cache_folder(), to_download(models), "to download"),
        (DATA, sum(map(to_make, models)), "to make"),
    ):
        there = next(place for place in [folder.absolute(), *folder.absolute().parents] if place.exists())
        needs.setdefault(there.stat().st_dev, []).append((there, size, what))
    lines = []
    for rows in needs.values():
        free, total = shutil.disk_usage(rows[0][0]).free, sum(size for _, size, _ in rows)
        if total > free:
            parts = " and ".join(f"{gigabytes(size)} {what}" for _, size, what in rows if size)
            lines.append(f"the disk of {rows[0][0]} has {gigabytes(free)} free, and there are {parts}: make room")
    return lines

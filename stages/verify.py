"""Check what is shipped against its manifests: `python -m stages.verify`.

Every file is hashed again, every manifest's own digest too, and the golden prompts are tokenised again. Each
difference is a line with what was expected and what was found; exit code 1 if there is one.
"""

from __future__ import annotations

from pathlib import Path

from stages.command import Refusal, counted, run, say
from stages.files import DATA, manifest_file, read_json, sha256_file
from stages.manifests.seal import KEY, digest
from stages.planning.plan import planned_models
from stages.tokens.reading import differences, load_tokenizer, reading


def check_file(folder: Path, entry: dict) -> str | None:
    """What is wrong with one listed file, or None."""
    path = folder / entry["name"]
    if not path.is_file():
        return f"{path}: missing (expected {entry['bytes']} bytes)"
    size = path.stat().st_size
    if size != entry["bytes"]:
        return f"{path}: expected {entry['bytes']} bytes, found {size}"
    found = sha256_file(path)
    return None if found == entry["sha256"] else f"{path}: expected sha256 {entry['sha256']}, found {found}"


def check_manifest(path: Path) -> tuple[list[str], int]:
    """What is wrong with a manifest and its files, and how many bytes were hashed."""
    try:
        manifest = read_json(path)
        listed = [*manifest["tokenizer_files"], *(entry for step in manifest["steps"] for entry in step["files"])]
        expected, read = manifest[KEY], manifest["reading"]
        rejected = {row["step"] for row in manifest["rejected"]}
    except (ValueError, KeyError, TypeError) as error:
        return [f"{path}: not a manifest of schema 1 ({type(error).__name__}: {error})"], 0
    found = digest(manifest)
    problems = [] if found == expected else [f"{path}: was edited: expected digest {expected}, found {found}"]
    folder = path.parent
    problems += [problem for entry in listed if (problem := check_file(folder, entry))]
    names = {entry["name"] for entry in listed} | {path.name}
    present = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    extra = [str(file) for file in present if file.relative_to(folder).as_posix() not in names]
    spare = {f"step{step}" for step in rejected}
    problems += [f"{name}: not in the manifest" for name in extra if Path(name).parent.name not in spare]
    if read and (folder / "tokenizer" / "tokenizer.json").is_file():
        problems += [f"{folder / 'tokenizer'}: {line}" for line in _tokens(folder / "tokenizer", read)]
    return problems, sum(entry["bytes"] for entry in listed)


def _tokens(folder: Path, read: dict) -> list[str]:
    try:
        return differences(read, reading(load_tokenizer(folder), read["golden_ids"]))
    except Refusal as refusal:
        return [str(refusal)]


def main() -> None:
    """Check all manifests; models of the plan without one are named."""
    manifests = sorted((DATA / "onnx").glob("*/manifest.json"))
    problems = [
        f"{manifest_file(m)}: missing: run `make repro`" for m in planned_models() if not manifest_file(m).exists()
    ]
    size = 0
    for path in manifests:
        found, hashed = check_manifest(path)
        problems += found
        size += hashed
        say(f"verify {path.parent.name}: {'all right' if not found else counted(len(found), 'problem')}")
    if problems:
        raise Refusal(counted(len(problems), "problem") + "".join(f"\n  {problem}" for problem in problems))
    say(f"verify: {counted(len(manifests), 'manifest')}, {size / 1e6:.1f} MB as listed")


if __name__ == "__main__":
    run("verify", main)

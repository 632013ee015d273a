"""A workspace: this repository's files in a folder of their own, with git and DVC, as a stranger's clone has them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PROMPTS = '[{"id": "a", "text": "w1 w2 w3 w4 w5"}, {"id": "b", "text": "w7 w7 w9"}]'


def environment() -> dict[str, str]:
    """The environment for commands: this Python's programs first, room for wide tables, not under another make."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    return kept | {"PATH": path, "COLUMNS": "200"}


@dataclass(frozen=True)
class Workspace:
    """A copy of the repository to run real commands in."""

    root: Path

    def run(self, *command: str, check: bool = True, **options) -> subprocess.CompletedProcess:
        """Run a command here; output as text."""
        done = subprocess.run(
            command, cwd=self.root, env=environment(), capture_output=True, text=True, check=False, **options
        )
        if check and done.returncode:
            raise AssertionError(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def stage(self, name: str, *arguments: str, **options) -> subprocess.CompletedProcess:
        """Run a stage as DVC does."""
        return self.run(sys.executable, "-m", f"stages.{name}", *arguments, **options)

    def dvc(self, *arguments: str, **options) -> subprocess.CompletedProcess:
        """Run DVC."""
        return self.run("dvc", *arguments, **options)

    def make(self, target: str, **options) -> subprocess.CompletedProcess:
        """Run a make target with this Python's environment, which is taken to be set up."""
        return self.run("make", "--old-file=pyproject.toml", target, f"VENV={sys.prefix}", **options)

    def params(self, text: str) -> None:
        """Write params.yaml."""
        (self.root / "params.yaml").write_text(text)


def copy_repository(root: Path) -> Workspace:
    """The tracked and new files of this repository under `root`, committed there."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if name.endswith("dvc.lock") or not (REPOSITORY / name).is_file():
            continue
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, root / name)
    workspace = Workspace(root)
    workspace.run("git", "init", "-q", "-b", "main")
    workspace.run("git", "config", "user.name", "test")
    workspace.run("git", "config", "user.email", "test@localhost")
    return workspace


def write_prompts(root: Path) -> None:
    """Two prompts of words that the tests' tokenizers know."""
    (root / "data/prompts").mkdir(parents=True, exist_ok=True)
    (root / "data/prompts/prompts.json").write_text(PROMPTS)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Workspace:
    """A workspace for the tests of one module."""
    return copy_repository(tmp_path_factory.mktemp("clone") / "lensmill")


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder as the working directory, for stages that are called in this process."""
    monkeypatch.chdir(tmp_path)
    write_prompts(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """A run of three steps of a GPT-NeoX, model m, with everything made, up to the reports."""
    from tests import models, pipeline

    root = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write_prompts(root)
        models.write_run(root / "run", "gpt_neox")
        pipeline.write_params("{trainer: run}")
        pipeline.trace()
        for step in ("1", "2", "3"):
            pipeline.make(step)
    return root


@pytest.fixture
def run(made, tmp_path, monkeypatch) -> Path:
    """The checkpoints of a copy of that run, which is the working directory."""
    root = tmp_path / "copy"
    shutil.copytree(made, root)
    monkeypatch.chdir(root)
    return root / "run"


@pytest.fixture(scope="session")
def hub(tmp_path_factory):
    """A hub on loopback."""
    from tests import hub as local_hub

    running, parts = local_hub.start(tmp_path_factory.mktemp("hub"))
    yield running
    local_hub.stop(parts)


@pytest.fixture
def client(hub, tmp_path):
    """A user of the hub: a folder to plan in, a Hugging Face cache of its own, commands as they are typed."""
    from tests.hub import Client

    hub.calm()
    write_prompts(tmp_path / "work")
    return Client(hub, tmp_path)

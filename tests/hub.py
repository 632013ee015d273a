"""A hub on this machine: olah serves git repositories, and a front before it answers as the public hub would where olah
does not (large files by sha256, refusals, gates) and can be told to fail."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from stages.anatomy.model import build
from stages.anatomy.stored import parameters
from tests.conftest import REPOSITORY

LARGE = (".safetensors", ".bin")
TOKEN = "hf_" + "x" * 34


@dataclass
class Fault:
    """What goes wrong with the next `times` requests of `method` whose path matches."""

    path: str
    kind: str  # a status, "cut" (half of it, then the connection breaks), "short" (half of it as the whole), "flip"
    times: int = 1
    method: str = "GET"


@dataclass
class Hub:
    """The running hub."""

    mirrors: Path
    url: str = ""
    behind: int = 0
    log: list[tuple[str, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    gated: set[str] = field(default_factory=set)
    slow: float = 0.0
    ranges: list[str] = field(default_factory=list)

    def repository(self, name: str) -> Repository:
        """A new, empty repository."""
        folder = self.mirrors / "models" / name
        folder.mkdir(parents=True)
        made = Repository(folder)
        made.git("init", "-q", "-b", "main")
        return made

    def calm(self) -> None:
        """Forget what was asked and what was to go wrong."""
        self.log.clear()
        self.ranges.clear()
        self.faults.clear()
        self.gated.clear()
        self.slow = 0.0

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """The environment for a client with a Hugging Face cache of its own under `home`."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home / "hf"), "HF_HUB_DISABLE_TELEMETRY": "1", **more}

    def asked(self, pattern: str, method: str = "GET") -> list[str]:
        """The paths that were asked for and match."""
        return [path for verb, path in self.log if verb == method and re.search(pattern, path)]


@dataclass
class Repository:
    """A git repository that the hub serves."""

    folder: Path

    def git(self, *arguments: str) -> str:
        """Run git in it."""
        who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        command = ["git", *who, *arguments]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def commit(
        self, source: Path | None = None, branch: str | None = None, tag: str | None = None, **files: str
    ) -> str:
        """Make the tree that of a folder, plus files, in a commit; name it; its id."""
        for path in self.folder.iterdir():
            if path.name != ".git" and source is not None:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if source is not None:
            shutil.copytree(source, self.folder, dirs_exist_ok=True)
        for name, text in files.items():
            (self.folder / name.replace("__", ".")).write_text(text)
        # Files copied with their times may look unchanged to git's index within one second.
        self.git("read-tree", "--empty")
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", f"at {time.monotonic_ns()}")
        if branch:
            self.git("branch", "-f", branch)
        if tag:
            self.git("tag", "-f", tag)
        return self.git("rev-parse", "HEAD")


@dataclass
class Client:
    """A user: a working folder, a Hugging Face cache, and stages run as commands."""

    hub: Hub
    home: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The working folder."""
        return self.home / "work"

    @property
    def cache(self) -> Path:
        """Where the cache keeps repositories."""
        return self.home / "hf" / "hub"

    def environment(self) -> dict[str, str]:
        """What commands see."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return {**kept, "PYTHONPATH": str(REPOSITORY), **self.hub.environment(self.home), **self.extra}

    def command(self, stage: str, *arguments: str) -> subprocess.CompletedProcess:
        """Run a stage."""
        command = [sys.executable, "-m", f"stages.{stage}", *arguments]
        return subprocess.run(
            command, cwd=self.root, env=self.environment(), capture_output=True, text=True, check=False
        )

    def run(self, stage: str, *arguments: str) -> str:
        """Run a stage that must succeed; what it prints."""
        done = self.command(stage, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def refused(self, stage: str, *arguments: str) -> str:
        """Run a stage that must be refused; what it says on stderr."""
        done = self.command(stage, *arguments)
        assert done.returncode == 1, done.stdout + done.stderr
        assert "Traceback" not in done.stderr, done.stderr
        return done.stderr

    def params(self, **models: str) -> None:
        """Write params.yaml, each model a line of YAML."""
        lines = [f"  {name}: {text}" for name, text in models.items()]
        (self.root / "params.yaml").write_text("\n".join(["models:", *lines, ""]))

    def pinned(self, model: str = "m") -> dict:
        """The plan of a model."""
        return json.loads((self.root / "models" / model / "params.json").read_text())

    def trace(self, model: str = "m") -> None:
        """Of the trace, what fetch needs."""
        network = build(self.pinned(model)["config"])
        folder = self.root / "data/graphs" / model / "backbone"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "parameters.json").write_text(json.dumps(parameters(network)))

    def record(self, step: str, model: str = "m") -> dict:
        """The record of a fetched step."""
        return json.loads((self.root / "data/checkpoints" / model / f"step{step}" / "checkpoint.json").read_text())


@lru_cache(maxsize=4096)
def _sha256(folder: Path, blob: str) -> str:
    content = subprocess.run(["git", "cat-file", "blob", blob], cwd=folder, check=True, capture_output=True).stdout
    return hashlib.sha256(content).hexdigest()


def _front(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Front(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer()

        do_HEAD = do_POST = do_GET

        def _answer(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.log.append((self.command, path))
            if self.command == "GET" and path.endswith(LARGE):
                hub.ranges.append(self.headers.get("Range") or "")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if path == "/api/models":
                return self._send(200, {}, json.dumps(self._models()).encode())
            name, revision = self._repository(path)
            folder = hub.mirrors / "models" / name
            allowed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            if not (folder / ".git").is_dir():
                return self._send(401, {"X-Error-Code": "RepoNotFound"}, b"{}")
            if name in hub.gated and "/resolve/" in path and not allowed:
                return self._send(403, {"X-Error-Code": "GatedRepo"}, b"{}")
            if revision and not self._known(folder, revision):
                return self._send(404, {"X-Error-Code": "RevisionNotFound"}, b"{}")
            if path == f"/api/models/{name}":
                self.path += "/revision/main"
            status, headers, content = self._behind(body)
            if "/tree/" in path and status == 200:
                content = self._with_large_files(folder, content)
            if "/resolve/" in path and status in (200, 206) and path.endswith(LARGE):
                size, oid = self._large_file(folder, path, revision)
                headers |= {"x-linked-etag": f'"{oid}"', "x-linked-size": size}
            return self._spoil(path, status, headers, content)

        def _models(self) -> list[dict]:
            owner = parse_qs(urlsplit(self.path).query).get("author", ["none"])[0]
            return [{"id": f"{owner}/{p.name}"} for p in sorted((hub.mirrors / "models" / owner).glob("*"))]

        def _repository(self, path: str) -> tuple[str, str | None]:
            parts = path.removeprefix("/api/models").strip("/").split("/")
            revision = (
                parts[3] if len(parts) > 3 and parts[2] in ("tree", "revision", "resolve", "paths-info") else None
            )
            return "/".join(parts[:2]), revision

        def _known(self, folder: Path, revision: str) -> bool:
            command = ["git", "cat-file", "-e", f"{revision}^{{commit}}"]
            return subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode == 0

        def _behind(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
            connection = http.client.HTTPConnection("127.0.0.1", hub.behind, timeout=60)
            sent = {k: v for k, v in self.headers.items() if k.lower() not in ("accept-encoding", "connection")}
            connection.request(self.command, self.path, body or None, sent)
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            dropped = ("transfer-encoding", "connection", "date", "server")
            headers = {key.lower(): value for key, value in answer.getheaders() if key.lower() not in dropped}
            return answer.status, headers, content

        def _large_file(self, folder: Path, path: str, revision: str) -> tuple[str, str]:
            place = f"{revision}:{path.split(revision + '/', 1)[1]}"
            show = lambda *command: subprocess.check_output(["git", *command], cwd=folder, text=True).strip()  # noqa: E731
            blob = show("rev-parse", place)
            return show("cat-file", "-s", blob), _sha256(folder, blob)

        def _with_large_files(self, folder: Path, content: bytes) -> bytes:
            entries = json.loads(content)
            for entry in entries:
                if entry["path"].endswith(LARGE) and entry["type"] == "file":
                    oid = _sha256(folder, entry["oid"])
                    entry["lfs"] = {"oid": oid, "size": entry["size"], "pointerSize": 134}
            return json.dumps(entries).encode()

        def _spoil(self, path: str, status: int, headers: dict[str, str], content: bytes) -> None:
            for fault in hub.faults:
                if fault.times and fault.method == self.command and re.search(fault.path, path):
                    fault.times -= 1
                    half = content[: len(content) // 2]
                    if fault.kind == "cut":
                        self._send(status, headers, half, promised=len(content))
                        self.close_connection = True
                        return None
                    if fault.kind == "short":
                        return self._send(status, headers, half)
                    if fault.kind.startswith("body:"):
                        return self._send(200, headers, fault.kind.removeprefix("body:").encode())
                    if fault.kind == "flip":
                        return self._send(status, headers, content[:-1] + bytes([content[-1] ^ 1]))
                    return self._send(int(fault.kind), {"Retry-After": "0"}, b"{}")
            return self._send(status, headers, content)

        def _send(self, status: int, headers: dict[str, str], content: bytes, promised: int | None = None) -> None:
            self.send_response(status)
            length = headers.get("content-length") if self.command == "HEAD" else None
            for key, value in headers.items():
                if key != "content-length":
                    self.send_header(key, value)
            self.send_header("Content-Length", length or str(len(content) if promised is None else promised))
            self.end_headers()
            if self.command != "HEAD":
                for start in range(0, len(content), 1 << 16):
                    self.wfile.write(content[start : start + (1 << 16)])
                    self.wfile.flush()
                    time.sleep(hub.slow)

    return Front


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(root: Path) -> tuple[Hub, list]:
    """Start olah and the front; the hub, and what `stop` ends."""
    hub = Hub(root / "mirrors", behind=_free_port())
    (hub.mirrors / "models").mkdir(parents=True)
    (root / "olah.toml").write_text(
        f'[basic]\nhost = "127.0.0.1"\nport = {hub.behind}\nmirrors-path = ["{hub.mirrors}"]\n'
        f'repos-path = "{root / "repos"}"\nmetadata-cache-ttl = 0\n[accessibility]\noffline = true\n'
    )
    with (root / "olah.log").open("w") as log:
        command = [sys.executable, "-m", "olah.server", "-c", str(root / "olah.toml")]
        server = subprocess.Popen(command, cwd=root, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", hub.behind), timeout=1).close()
            break
        except OSError:
            assert server.poll() is None, (root / "olah.log").read_text()
            assert time.monotonic() < deadline, "olah does not answer"
            time.sleep(0.2)
    front = ThreadingHTTPServer(("127.0.0.1", 0), _front(hub))
    hub.url = f"http://127.0.0.1:{front.server_port}"
    threading.Thread(target=front.serve_forever, daemon=True).start()
    return hub, [server, front]


def stop(parts: list) -> None:
    """End what `start` started."""
    server, front = parts
    front.shutdown()
    front.server_close()
    server.terminate()
    server.wait(30)

"""A hub on 127.0.0.1: refs, trees with SHA-256, ranged downloads, and what goes wrong with them."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """Models as folders of revisions, and what was asked of them."""

    root: Path
    """``root/OWNER/NAME/REVISION/...``."""
    endpoint: str = ""
    private: set[str] = field(default_factory=set)
    token: str = ""
    """Opens the private models."""
    missing: set[str] = field(default_factory=set)
    """Revisions that refs list and that are not there."""
    break_after: dict[str, int] = field(default_factory=dict)
    """Revision -> bytes after which each transfer ends, until it has been broken off three times."""
    refuse: Counter[str] = field(default_factory=Counter)
    """Revision -> requests that are answered with 429 first."""
    slow: dict[str, float] = field(default_factory=dict)
    """Revision -> seconds before each answer."""
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(revision, file) -> bytes of its content that went out."""
    broken: Counter[str] = field(default_factory=Counter)
    lie: Callable[[BaseHTTPRequestHandler, str, str], bool] | None = None
    """Handed each request, of "refs", a "tree" or a "file", and the revision: whether it has answered it."""
    ranges: list[tuple[str, str, int, int]] = field(default_factory=list)

    def model(self, name: str) -> Path:
        """Where the revisions of a model lie."""
        return self.root / name


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    """The hub at work."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: object) -> None:
            """Silent."""

        def handle(self) -> None:
            with suppress(ConnectionError):
                super().handle()

        def do_GET(self) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            if parts[:2] == ["api", "models"]:
                self._api("/".join(parts[2:4]), parts[4:])
            elif parts[2:3] == ["resolve"]:
                self._file("/".join(parts[:2]), parts[3], "/".join(parts[4:]))
            else:
                self._json({"error": "no such page"}, 404)

        def _api(self, model: str, rest: list[str]) -> None:
            if self._is_closed(model):
                self._json({"error": "Invalid username or password."}, 401)
            elif not hub.model(model).is_dir():
                self._json({"error": "Repository not found"}, 404, "RepoNotFound")
            elif rest == ["refs"] and self._lies("refs", ""):
                pass
            elif rest == ["refs"]:
                names = sorted({one.name for one in hub.model(model).iterdir()} | hub.missing)
                listed = [
                    {"name": n, "ref": f"refs/heads/{n}", "targetCommit": _commit(hub.model(model) / n)}
                    for n in names
                ]
                self._json({"branches": listed, "converts": [], "tags": []})
            else:
                revision = self._named(model, rest[1])
                self._tree(hub.model(model) / revision, revision)

        def _named(self, model: str, revision: str) -> str:
            """The name of a commit, while it is what the name stands for."""
            root = hub.model(model)
            names = [*(one.name for one in root.iterdir()), *hub.missing] if root.is_dir() else []
            return next((name for name in names if _commit(root / name) == revision), revision)

        def _tree(self, folder: Path, revision: str) -> None:
            if revision in hub.missing or not folder.is_dir():
                self._json({"error": f"Invalid rev id: {revision}"}, 404, "RevisionNotFound")
                return
            if self._late_or_refused(revision) or self._lies("tree", revision):
                return
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            self._json([_entry(path, folder) for path in files])

        def _is_closed(self, model: str) -> bool:
            given = self.headers.get("Authorization", "")
            return model in hub.private and (not hub.token or given != f"Bearer {hub.token}")

        def _lies(self, what: str, revision: str) -> bool:
            return hub.lie is not None and hub.lie(self, what, revision)

        def _late_or_refused(self, revision: str) -> bool:
            time.sleep(hub.slow.get(revision, 0.0))
            if hub.refuse[revision] > 0:
                hub.refuse[revision] -= 1
                self._json({"error": "slow down"}, 429)
                return True
            return False

        def _file(self, model: str, revision: str, file: str) -> None:
            revision = self._named(model, revision)
            path = hub.model(model) / revision / file
            if self._is_closed(model):
                self._json({"error": "Invalid username or password."}, 401)
                return
            if not path.is_file():
                self._json({"error": "Entry not found"}, 404, "EntryNotFound")
                return
            if self._late_or_refused(revision) or self._lies("file", revision):
                return
            size, begin, end = path.stat().st_size, 0, path.stat().st_size
            asked = self.headers.get("Range")
            if asked:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                begin, end = int(first), min(size, int(last) + 1)
            hub.ranges.append((revision, file, begin, end))
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - begin))
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.end_headers()
            with open(path, "rb") as opened:
                opened.seek(begin)
                limit = hub.break_after.get(revision)
                if limit is not None and limit < end - begin and hub.broken[revision] < 3:
                    hub.broken[revision] += 1
                    end, self.close_connection = begin + limit, True
                while begin < end:
                    piece = opened.read(min(1 << 20, end - begin))
                    self.wfile.write(piece)
                    begin += len(piece)
                    hub.sent[revision, file] += len(piece)

        def _json(self, content: object, status: int = 200, code: str = "") -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            if code:
                self.send_header("X-Error-Code", code)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _commit(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    told = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns) for path in files]
    return hashlib.sha1(f"{folder} {told}".encode()).hexdigest()


def _entry(path: Path, folder: Path) -> dict[str, object]:
    content = path.read_bytes()
    entry: dict[str, object] = {
        "type": "file",
        "path": path.relative_to(folder).as_posix(),
        "size": len(content),
        "oid": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest(),
        "lastCommit": {"id": "0" * 40, "title": "upload", "date": "2024-01-01T00:00:00.000Z"},
    }
    if path.suffix in (".safetensors", ".bin", ".pt"):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
    return entry

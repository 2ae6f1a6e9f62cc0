"""A server on this machine that answers as the Hugging Face Hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

REPOSITORY, COMMIT = "someone/tiny-model", "0123456789abcdef0123456789abcdef01234567"
BIG = "model.safetensors"


class StandIn(ThreadingHTTPServer):
    """One repository. `cut` ends each answer with the big file after so many bytes, `down` refuses it."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = files
        self.listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        """Checksums of those in large-file storage."""
        self.cut: int | None = None
        self.down = False
        self.sent: Counter[str] = Counter()
        self.ranges: list[str] = []
        self.redirect = False
        self.tokens: dict[str, set[str | None]] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: StandIn

    def do_GET(self) -> None:
        if self.path.startswith(f"/api/models/{REPOSITORY}"):
            self._info()
        else:
            self._file()

    def _note_token(self) -> None:
        first = "/" + self.path.split("/")[1]
        self.server.tokens.setdefault(first, set()).add(self.headers["Authorization"])

    def _info(self) -> None:
        self._note_token()
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": git_hash(content)}
            | (
                {"lfs": {"sha256": self.server.listed[name], "size": len(content), "pointerSize": 1}}
                if is_large(name)
                else {}
            )
            for name, content in self.server.files.items()
        ]
        text = json.dumps({"id": REPOSITORY, "sha": COMMIT, "siblings": siblings}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _file(self) -> None:
        server, name = self.server, self.path.rpartition(f"/resolve/{COMMIT}/")[2]
        self._note_token()
        if server.redirect and not self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", f"/elsewhere{self.path}")
            self.end_headers()
            return
        if f"/{REPOSITORY}/resolve/" not in self.path or name not in server.files:
            self.send_error(404)
            return
        if server.down and name == BIG:
            self.send_error(503)
            return
        content, start = server.files[name], 0
        if "Range" in self.headers:
            server.ranges.append(self.headers["Range"])
            start = int(self.headers["Range"].removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.send_header("ETag", f'"{server.listed[name] if is_large(name) else git_hash(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        part = content[start:] if server.cut is None or name != BIG else content[start : start + server.cut]
        server.sent[name] += len(part)  # before the client can have it, and read this count
        self.wfile.write(part)
        if len(part) < len(content) - start:
            server.down = True
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        return


def is_large(name: str) -> bool:
    return name == BIG or name.endswith(".gguf")


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@contextmanager
def serving(files: dict[str, bytes]) -> Iterator[StandIn]:
    server = StandIn(files)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()

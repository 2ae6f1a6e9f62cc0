"""Pulling from the Hugging Face Hub, against a server on this machine that answers as the Hub does."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from engine.errors import CheckpointError, ConfigError
from engine.models.catalogue import needs_pull, open_model, pull
from engine.models.checkpoints.hub import parse_name
from engine.models.checkpoints.write import write_checkpoint
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights

REPOSITORY, COMMIT = "someone/tiny-model", "0123456789abcdef0123456789abcdef01234567"
BIG = "model.safetensors"


class StandIn(ThreadingHTTPServer):
    """One repository. `cut` ends each answer with the big file after so many bytes, `down` refuses it."""

    daemon_threads = True

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = files
        self.listed = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
        self.cut: int | None = None
        self.down = False
        self.sent: dict[str, int] = dict.fromkeys(files, 0)
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
                if name == BIG
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
        server, name = self.server, self.path.rsplit("/", 1)[-1]
        self._note_token()
        if server.redirect and not self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("Location", f"/elsewhere{self.path}")
            self.end_headers()
            return
        if f"/{REPOSITORY}/resolve/{COMMIT}/" not in self.path or name not in server.files:
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
        self.send_header("ETag", f'"{server.listed[name] if name == BIG else git_hash(content)}"')
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


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    folder = write_checkpoint(RandomWeights(load_preset("tiny-llama").config, 5), tmp_path / "source")
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"run_me.py": b"import os"}
    server = StandIn(files)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path / "home"))
    yield server
    server.shutdown()
    server.server_close()


def test_a_pulled_repository_opens_by_its_name(hub: StandIn) -> None:
    shown: list[tuple[int, int]] = []

    folder = pull(REPOSITORY, lambda one: shown.append((one.done, one.total)))

    model = open_model(f"hf:{REPOSITORY}")
    expected = RandomWeights(load_preset("tiny-llama").config, 5)
    np.testing.assert_array_equal(model.weights.get("layers.1.wq"), expected.get("layers.1.wq"))
    assert model.config.name == "tiny-model"
    assert {path.name for path in folder.iterdir()} == {"config.json", BIG}
    assert shown[-1][0] == shown[-1][1] == sum(len(hub.files[n]) for n in ("config.json", BIG))


def test_the_revision_is_pinned_to_its_commit(hub: StandIn) -> None:
    folder = pull(REPOSITORY)

    assert folder.name == COMMIT
    assert open_model(f"hf:{REPOSITORY}@{COMMIT[:10]}").source == str(folder)
    with pytest.raises(CheckpointError, match="ffff is not on this machine"):
        open_model(f"hf:{REPOSITORY}@ffff")


def test_a_second_pull_downloads_nothing(hub: StandIn) -> None:
    pull(REPOSITORY)
    sent = dict(hub.sent)

    pull(REPOSITORY)

    assert hub.sent == sent


def test_a_broken_download_goes_on_where_it_was(hub: StandIn) -> None:
    hub.cut = len(hub.files[BIG]) // 2
    with pytest.raises(CheckpointError, match=r"safetensors broke off after 317088 of 634176 bytes.*is kept"):
        pull(REPOSITORY)
    with pytest.raises(CheckpointError, match="is not on this machine: get it with"):
        open_model(f"hf:{REPOSITORY}")

    hub.cut, hub.down = None, False
    pull(REPOSITORY)

    assert hub.ranges[-1] == f"bytes={len(hub.files[BIG]) // 2}-"
    assert hub.sent[BIG] == len(hub.files[BIG])
    assert open_model(f"hf:{REPOSITORY}").config.parameters == load_preset("tiny-llama").config.parameters


def test_a_file_that_is_not_the_listed_one_is_thrown_away(hub: StandIn) -> None:
    good = hub.files[BIG]
    hub.files[BIG] = good[:-1] + bytes([good[-1] ^ 1])

    with pytest.raises(CheckpointError, match=r"model\.safetensors has the checksum \w+, the Hub lists"):
        pull(REPOSITORY)

    hub.files[BIG] = good
    assert open_model(str(pull(REPOSITORY))).config.vocab == 320


def test_a_repository_that_is_not_there_is_one_sentence(hub: StandIn) -> None:
    with pytest.raises(CheckpointError, match="someone/else could not be pulled"):
        pull("someone/else")


@pytest.mark.parametrize(
    "name", ["hf:", "hf:one", "hf:a/b/c", "hf:../etc", "hf:a/b@", "hf:a/b@x y", "hf:a/../b"]
)
def test_a_name_that_is_none_is_refused_before_anything_is_asked(name: str) -> None:
    if name == "hf:a/b@":
        assert parse_name(name).revision == ""
        return
    with pytest.raises(CheckpointError, match=r"is not owner/name or owner/name@revision"):
        parse_name(name)


def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.redirect = True

    pull(REPOSITORY)

    assert hub.tokens == {"/api": {"Bearer secret"}, "/someone": {"Bearer secret"}, "/elsewhere": {None}}


def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")

    with pytest.raises(ConfigError, match="must start with https://"):
        pull(REPOSITORY)


def test_a_repository_needs_a_pull(hub: StandIn) -> None:
    assert needs_pull(f"hf:{REPOSITORY}")

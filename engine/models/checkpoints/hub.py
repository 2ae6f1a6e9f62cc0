"""Models of the Hugging Face Hub: a repository at one revision, whole and checked, or not there.

A download that breaks off goes on where it was the next time: what has come stays in a folder beside the
target until everything is there and its checksums are right. Then the folder is renamed.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from engine.errors import CheckpointError
from engine.models.checkpoints.hub_files import HubFile, choose_files, without_spare
from engine.models.checkpoints.json_file import parse_object
from engine.models.checkpoints.safetensors_file import INDEX, shard_names
from engine.models.presets import Hub
from engine.progress import BYTES, OnProgress, Progress, ignore_progress
from engine.settings import hub_endpoint, hub_token, models_dir

if TYPE_CHECKING:
    from http.client import HTTPResponse

PREFIX = "hf:"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}")
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]{0,127}")
_CHOICE = re.compile(r"[A-Za-z0-9][\w.-]{0,127}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CURRENT = "revision"
"""How files begin that say which revision of a repository, or of a GGUF model in it, was pulled last."""
_SPARE = 64 << 20
"""Bytes of disk that a pull leaves free."""
_CHUNK = 1 << 20
_TIMEOUT_S = 30.0
_PARTIAL_CONTENT = 206


@dataclass(frozen=True, slots=True)
class HubName:
    """owner/name, owner/name@revision, owner/name:choice or owner/name@revision:choice."""

    hub: Hub
    choice: str = ""
    """Which GGUF model of the repository, by how its name ends; empty: its safetensors, or its only one."""

    @property
    def suffix(self) -> str:
        """What tells the folder of a choice from those of others."""
        return f".{self.choice.casefold()}" if self.choice else ""


def parse_name(name: str) -> HubName:
    """The repository after "hf:" or without it; revision "" if none is named.

    Raises CheckpointError if it is none.
    """
    front, colon, choice = name.removeprefix(PREFIX).partition(":")
    repository, _, revision = front.partition("@")
    if (
        not _REPOSITORY.fullmatch(repository)
        or (revision and not _REVISION.fullmatch(revision))
        or (colon and not _CHOICE.fullmatch(choice))
    ):
        raise CheckpointError(
            f"{name!r:.200} is not owner/name, owner/name@revision or owner/name:file of the Hugging Face Hub"
        )
    return HubName(Hub(repository, revision), choice)


def model_path(name: str) -> Path:
    """The folder of a pulled repository, or the GGUF file of one.

    Raises CheckpointError if it was not pulled, saying how.
    """
    asked = parse_name(name)
    place = _place(asked.hub.repository)
    for folder in _pulled(place, asked):
        if (folder / "config.json").exists():
            return folder
        if files := sorted(folder.glob("*.gguf")):
            return files[0]
    wanted = name.removeprefix(PREFIX)
    raise CheckpointError(
        f"{wanted} is not on this machine: get it with `{sys.executable} -m engine pull {wanted}`"
    )


def pulled_names() -> list[str]:
    """What `model_path` finds here, as it was pulled last: hf:owner/name and hf:owner/name:choice."""
    found = (models_dir() / "hub").glob(f"*/*/{_CURRENT}*")
    names = [(path.parent, path.name.removeprefix(_CURRENT).removeprefix(".")) for path in found]
    return sorted(
        f"{PREFIX}{place.parent.name}/{place.name}" + (f":{choice}" if choice else "")
        for place, choice in names
    )


def pull_repository(name: str, progress: OnProgress) -> Path:
    """Gets a repository, at the newest revision unless `name` has one, pinned to the commit that it is now.

    Raises CheckpointError if there is none, or as `pull_hub` does.
    """
    asked = parse_name(name)
    commit, _ = _ask(asked.hub)
    place = _place(asked.hub.repository)
    folder = place / (commit + asked.suffix)
    if not folder.exists():
        pull_hub(Hub(asked.hub.repository, commit), folder, progress, choice=asked.choice)
    (place / (_CURRENT + asked.suffix)).write_text(commit + "\n", encoding="utf-8")
    return folder


def pull_hub(hub: Hub, target: Path, progress: OnProgress, *, choice: str = "") -> Path:
    """Downloads a repository's configuration, tokenizer and safetensors, or the GGUF files that `choice`
    names, into the folder `target`.

    Raises CheckpointError if there is no such model, the disk is full, the download breaks off, or a file
    is not the one that the Hub lists. What had come is kept for the next try, a wrong file not.
    """
    commit, files = _ask(hub)
    files = choose_files(hub.repository, files, choice)
    work = target.with_name(f".{target.name}.partial")
    try:
        work.mkdir(parents=True, exist_ok=True)
        files = _without_spare(Hub(hub.repository, commit), files, work)
        _require_room(work, files)
        whole, before = sum(file.size for file in files), 0
        for file in files:
            _download(Hub(hub.repository, commit), file, work, _shift(progress, before, whole))
            before += file.size
        if not target.exists():  # another process may have been faster
            work.replace(target)
    except OSError as error:
        raise _failure(hub, error) from error
    return target


def _without_spare(hub: Hub, files: list[HubFile], work: Path) -> list[HubFile]:
    """The files that the index names and those beside them; the index is downloaded for it."""
    index = next((file for file in files if file.path == INDEX), None)
    if index is None:
        return without_spare(files, None)
    _download(hub, index, work, ignore_progress)
    return without_spare(files, shard_names(work / INDEX))


def _place(repository: str) -> Path:
    return models_dir() / "hub" / repository


def _pulled(place: Path, asked: HubName) -> list[Path]:
    """The folders of what was asked for, whole; without a revision that of the one that was pulled last."""
    revision, current = asked.hub.revision, place / (_CURRENT + asked.suffix)
    if not revision and current.exists():
        revision = current.read_text(encoding="utf-8").strip()
    folders = sorted(place.glob(f"{revision}*")) if revision else []
    return [folder for folder in folders if folder.name.partition(".")[2] == asked.suffix[1:]]


def _ask(hub: Hub) -> tuple[str, list[HubFile]]:
    """The commit that a repository's revision is, and the files in it."""
    at = f"/revision/{hub.revision}" if hub.revision else ""
    try:
        with _open(f"{hub_endpoint()}/api/models/{hub.repository}{at}?blobs=true") as response:
            answer = parse_object(response.read(32 << 20))
        commit, siblings = answer["sha"], [_describe(entry) for entry in answer["siblings"]]
        if not _COMMIT.fullmatch(commit):
            raise ValueError("it names no commit")
    except OSError as error:
        raise _failure(hub, error) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the Hub's answer about {hub.repository} is not usable: {error!s:.200}"
        ) from error
    return commit, siblings


def _describe(entry: dict[str, Any]) -> HubFile:
    stored = entry.get("lfs") or {}
    return HubFile(str(entry["rfilename"]), int(entry["size"]), stored.get("sha256"), entry.get("blobId"))


def _require_room(work: Path, files: Iterable[HubFile]) -> None:
    here = sum(path.stat().st_size for path in work.iterdir())
    needed, free = sum(file.size for file in files) - here + _SPARE, shutil.disk_usage(work).free
    if free < needed:
        raise CheckpointError(
            f"the disk of {work.parent} has {free >> 20} MiB free, {needed >> 20} are needed:"
            " free some, or set MONOLANE_HOME to another disk"
        )


def _shift(progress: OnProgress, before: int, whole: int) -> OnProgress:
    """`progress` of one file as that of all."""
    return lambda one: progress(replace(one, done=before + one.done, total=whole))


def _download(hub: Hub, file: HubFile, work: Path, progress: OnProgress) -> None:
    """Makes `file` whole in `work`, from where an earlier try left it."""
    path, part = work / file.name, work / f"{file.name}.part"
    if not path.exists():
        _fetch(hub, file, part, progress)
        _check(hub, file, part)
        part.replace(path)
    progress(Progress(file.size, file.size, BYTES, f"downloading {file.name}"))


def _fetch(hub: Hub, file: HubFile, part: Path, progress: OnProgress) -> None:
    """Raises OSError, or CheckpointError if the file comes to an end too soon."""
    done = part.stat().st_size if part.exists() else 0
    if done == file.size and part.exists():
        return
    url = f"{hub_endpoint()}/{hub.repository}/resolve/{hub.revision}/{file.path}"
    with _open(url, done) as response, part.open("ab") as sink:
        if done and response.status != _PARTIAL_CONTENT:  # the server begins anew
            sink.truncate(0)
            done = 0
        while chunk := response.read(_CHUNK):
            sink.write(chunk)
            done += len(chunk)
            progress(Progress(done, file.size, BYTES, f"downloading {file.name}"))
    if done < file.size:
        raise _failure(hub, f"{file.name} broke off after {done} of {file.size} bytes")


@contextmanager
def _open(url: str, start: int = 0) -> Iterator[HTTPResponse]:
    """The answer to a GET, from byte `start` on. The token is not sent to where the Hub redirects to.

    Raises OSError, also for an answer that is no HTTP.
    """
    import http.client  # the start of a worker needs none of these
    import urllib.request

    request = urllib.request.Request(url, headers={"User-Agent": "monolane"})  # noqa: S310 - settings allow http(s) only
    if start:
        request.add_header("Range", f"bytes={start}-")
    if token := hub_token():
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:  # noqa: S310
            yield response
    except http.client.HTTPException as error:
        raise OSError(str(error)) from error


def _check(hub: Hub, file: HubFile, path: Path) -> None:
    """Raises CheckpointError, and removes the file, unless it is the one that the Hub lists."""
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(usedforsecurity=False)
    if not file.sha256:
        digest.update(b"blob %d\0" % path.stat().st_size)
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK):
            digest.update(chunk)
    expected = file.sha256 or file.git
    if digest.hexdigest() != expected:
        path.unlink()
        raise CheckpointError(
            f"{hub.repository}: {file.name} has the checksum {digest.hexdigest()}, the Hub lists {expected}:"
            " it was thrown away, try again"
        )


def _failure(hub: Hub, reason: Exception | str) -> CheckpointError:
    return CheckpointError(
        f"{hub.repository} could not be pulled ({reason!s:.300}): check the name, the network and the disk,"
        " and try again; what has come is kept"
    )

"""Weights as backends take them, kept on disk: a worker that is started again maps them in place of decoding.

Up to two files a model, under MONOLANE_HOME/weights: the matrices that every backend decodes, and those that
some multiply as they ship (`Storage.is_packed`), which a backend asks for either all or not at all. A file is
a page that says whose it is, then its matrices, aligned to 64 bytes. It is written while they are decoded for
the first time and gets its name once it is whole, so a file of that name and size needs no second look. The
name holds the SHA-256 of the checkpoint and VERSION. The least recently used files go when there is no room
within the budget.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig, tensor_shapes
from engine.models.storage import Packed, Storage
from engine.models.weights import DType, Weights, packed_of, storage_of

VERSION = 2
"""Of the layout, and of what decoding gives: raised when either changes, so that no old file is read."""
SUFFIX = ".weights"
_PAGE = 4096
_ALIGNED = 64
_ABANDONED_S = 3600.0
"""A file that has been without its name for so long is nobody's any more."""


class Decoding(Weights, Protocol):
    """Weights that may have to be decoded from another format."""

    @property
    def is_decoded(self) -> bool:
        """Whether `get` computes what it returns for a matrix of type `native`."""
        ...


class KeptWeights:
    """Weights (the protocol in engine.models.weights) whose matrices are decoded once a machine."""

    def __init__(self, weights: Weights, files: Sequence[_File]) -> None:
        self.config: ModelConfig = weights.config
        self.native: DType = weights.native
        self._weights = weights
        self._files = {name: file for file in files for name in file.layout.places}

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        file = self._files.get(name)
        if dtype != self.native or file is None:
            return self._weights.get(name, dtype)
        if file.kept is not None:
            return file.layout.view(file.kept, name)
        values = self._weights.get(name, dtype)
        file.writer.add(name, values)
        return values

    def storage(self, name: str) -> Storage:
        return storage_of(self._weights, name)

    def packed(self, name: str) -> Packed:
        return packed_of(self._weights, name)


def keep_decoded(weights: Decoding, digest: str, folder: Path, budget_bytes: int) -> Weights:
    """`weights`, from `folder` if they lie there decoded; else they are put there as they are decoded.

    As they are where nothing has to be decoded, or where that would exceed the budget or the disk; and
    with experts, which stay packed.
    """
    if not weights.is_decoded or weights.native == "f32" or weights.config.experts:
        return weights
    matrices = [(name, shape) for name, shape in tensor_shapes(weights.config) if len(shape) > 1]
    files, room = [], budget_bytes
    for packed in (False, True):
        part = [each for each in matrices if storage_of(weights, each[0]).is_packed == packed]
        layout = _Layout.of(part, weights.native, digest, packed=packed)
        path = folder / f"{digest[:32]}-{weights.native}{'-packed' * packed}-{VERSION}{SUFFIX}"
        if part and layout.size <= room:
            room -= layout.size
            files.append(_File(layout, path, budget_bytes))
    return KeptWeights(weights, files) if files else weights


class _File:
    """Some of a model's matrices, where they lie on disk or as they get there."""

    def __init__(self, layout: _Layout, path: Path, budget_bytes: int) -> None:
        self.layout = layout
        self.kept = _map(path, layout)
        self.writer = _Writer(layout, path, budget_bytes)


@dataclass(frozen=True)
class _Layout:
    """Where each matrix lies in the file."""

    head: bytes
    dtype: DType
    places: dict[str, tuple[int, tuple[int, ...]]]
    """Name to offset and shape."""
    size: int

    @classmethod
    def of(
        cls, matrices: Sequence[tuple[str, tuple[int, ...]]], dtype: DType, digest: str, *, packed: bool
    ) -> _Layout:
        at, places = _PAGE, {}
        for name, shape in matrices:
            places[name] = (at, tuple(shape))
            at += -(-int(np.prod(shape)) * 2 // _ALIGNED) * _ALIGNED
        said = {"digest": digest, "dtype": dtype, "packed": packed, "version": VERSION, "size": at}
        return cls(json.dumps(said).encode().ljust(_PAGE), dtype, places, at)

    def view(self, data: NDArray[np.uint8], name: str) -> NDArray[Any]:
        at, shape = self.places[name]
        kind = np.float16 if self.dtype == "f16" else np.uint16
        return data[at : at + 2 * int(np.prod(shape))].view(kind).reshape(shape)


def _map(path: Path, layout: _Layout) -> NDArray[np.uint8] | None:
    """The file if it is there, whole and this model's; one that is not is removed."""
    try:
        if not path.exists():
            return None
        data = np.memmap(path, np.uint8, mode="r")
        if len(data) == layout.size and data[:_PAGE].tobytes() == layout.head:
            os.utime(path)  # used now: the least recently used go first
            return np.asarray(data)
        path.unlink()
    except (OSError, ValueError):
        pass
    return None


class _Writer:
    """Fills a file beside its final name. Best effort: without it the next start only takes longer."""

    def __init__(self, layout: _Layout, path: Path, budget_bytes: int) -> None:
        self._layout, self._path, self._budget = layout, path, budget_bytes
        self._scratch = path.with_suffix(f".{os.getpid()}.tmp")
        self._missing = set(layout.places)
        self._lock = threading.Lock()
        self._begun = False
        self._data: NDArray[np.uint8] | None = None

    def add(self, name: str, values: NDArray[Any]) -> None:
        """Called from several threads, for names of the layout."""
        with self._lock:
            self._begin()
            data = self._data
        if data is None or name not in self._missing:
            return
        self._layout.view(data, name)[...] = values
        with self._lock:
            self._missing.discard(name)
            if self._missing:
                return
            self._data = None
        with contextlib.suppress(OSError):
            self._scratch.replace(self._path)

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        folder, size = self._path.parent, self._layout.size
        with contextlib.suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            make_room(folder, self._budget - size)
            if shutil.disk_usage(folder).free > 2 * size:
                weakref.finalize(self, self._scratch.unlink, missing_ok=True)  # one that is never whole
                data = np.memmap(self._scratch, np.uint8, mode="w+", shape=(size,))
                data[:_PAGE] = np.frombuffer(self._layout.head, np.uint8)
                self._data = data


def kept_files(folder: Path) -> list[Path]:
    """The least recently used first."""
    if not folder.is_dir():
        return []
    return sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)


def make_room(folder: Path, most_bytes: int) -> None:
    """Removes files, the least recently used first, until at most so many bytes are left."""
    for path in folder.glob("*.tmp"):
        if time.time() - path.stat().st_mtime > _ABANDONED_S:
            path.unlink(missing_ok=True)
    files = kept_files(folder)
    sizes = {path: path.stat().st_size for path in files}
    for path in files:
        if sum(sizes.values()) <= most_bytes:
            return
        path.unlink(missing_ok=True)
        del sizes[path]

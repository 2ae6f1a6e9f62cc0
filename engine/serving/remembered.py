"""Whose prompts a worker has kept, on disk, so that a restarted one goes on from them too.

Tokens are written and not keys and values: they are read again at the start, at the speed of a prefill. The
file is its owner's alone, as it holds what visitors have written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from pathlib import Path

import msgspec

from engine.backends.base import Backend, Job
from engine.backends.prefix_cache import PINNED, KeptSequence
from engine.backends.running import complete
from engine.errors import RequestError

log = logging.getLogger(__name__)
MOST = 16
"""Sequences that are read again, the most recently used: a worker must not be long about its start."""

_KEPT = msgspec.json.Decoder(list[KeptSequence])


class Remembered:
    """The kept sequences of one worker and one model, as they were when it last was idle."""

    def __init__(self, folder: Path, worker: str, digest: str) -> None:
        self._path = folder / f"{re.sub('[^A-Za-z0-9.-]', '_', worker)}-{digest[:16].replace(':', '-')}.json"
        self._written: list[KeptSequence] = []

    def save(self, backend: Backend) -> None:
        """Writes down what is kept, if that has changed."""
        kept = [one for one in backend.kept_sequences() if one.salt != PINNED][-MOST:]
        if kept == self._written:
            return
        scratch = self._path.with_suffix(f".{os.getpid()}.tmp")
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(kept))
            scratch.replace(self._path)
        except OSError as error:
            log.warning("kept prompts are not written down: %s", error.strerror)
        self._written = kept

    def restore(self, backend: Backend) -> int:
        """Reads the prompts again, the least recently used first; how many there were."""
        restored = 0
        for salt, tokens in self._load():
            with contextlib.suppress(RequestError):  # too long by now, or of another vocabulary
                complete(backend, Job(tokens, max_tokens=1, cache_salt=salt))
                restored += 1
        return restored

    def _load(self) -> list[KeptSequence]:
        try:
            return _KEPT.decode(self._path.read_bytes())[-MOST:]
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            log.warning("kept prompts cannot be read, so prompts begin cold: %s", error)
            return []

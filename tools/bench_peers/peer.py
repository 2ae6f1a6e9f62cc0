"""What a peer is, and the lines that its process and this one exchange."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Protocol, Self, runtime_checkable

from engine.errors import EngineError
from tools.setup import ROOT

READY_S = 240.0
"""A peer that compiles and tunes its kernels takes a minute; one that is silent for so long is given up."""
ANSWER_S = 120.0


class PeerUnavailable(EngineError):
    """Why a peer has no figures on this machine."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A plain Llama of a preset's sizes, and where it is measured.

    Lanes are left out: the same matrices in one lane move the same bytes with fewer dependencies, which
    favours the peers.
    """

    model: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    tied_head: bool
    theta: float
    norm_eps: float
    context: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Facts:
    """What a peer says of itself: its name for tables, and settings and checks as JSON values."""

    name: str
    device: str
    more: Mapping[str, Any] = field(default_factory=dict)


class Peer(Protocol):
    """An engine that is ready: its weights are on the GPU, its kernels compiled."""

    @property
    def facts(self) -> Facts: ...

    @property
    def source(self) -> str:
        """Where its code came from: a URL with the commit, or a package's version."""
        ...

    def measure(self, repeats: int) -> list[float]:
        """Decode speeds, tokens a second. Raises PeerUnavailable if it breaks down."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Reader(Peer, Protocol):
    """One that can be asked for prompts as well."""

    def read(self, lengths: Sequence[int], repeats: int) -> list[list[float]]:
        """Speeds of prompts of each length, tokens a second. Raises PeerUnavailable if it breaks down."""
        ...


class PeerProcess:
    """A driver, a module by its name, in a process of its own, which keeps its model between turns.

    It writes {"name", "device", "more"} when it is ready, then {"samples"} for each {"repeats"} it reads, one
    JSON value a line. It is started at once; `wait` for it before anything else. Whatever it is asked raises
    PeerUnavailable, with the driver's last words, if it breaks down.
    """

    def __init__(
        self,
        driver: str,
        arguments: Sequence[str],
        source: str,
        log: Path,
        *,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.source = source
        self._driver, self._log = driver, log
        with log.open("w", encoding="utf-8") as errors:
            self._process = subprocess.Popen(
                [python, "-m", driver, *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()
        self.facts = Facts(driver, "")

    def wait(self) -> Self:
        """Until it is ready."""
        ready = self._answer(READY_S)
        self.facts = Facts(ready["name"], ready["device"], ready.get("more", {}))
        return self

    def measure(self, repeats: int) -> list[float]:
        assert self._process.stdin is not None  # noqa: S101 - it was asked for
        try:
            self._process.stdin.write(json.dumps({"repeats": repeats}) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise self._broken(f"it has ended ({error})") from error
        return [float(sample) for sample in self._answer(ANSWER_S)["samples"]]

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._lines.put(line)
        self._lines.put("")

    def _answer(self, limit_s: float) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=limit_s)
        except queue.Empty:
            self._process.kill()
            raise self._broken(f"it was silent for {limit_s:g} s") from None
        if not line:
            raise self._broken("it ended")
        try:
            answer = json.loads(line)
        except ValueError as error:
            self._process.kill()
            raise self._broken(f"it said {line.strip()[:200]!r}") from error
        return dict(answer)

    def _broken(self, what: str) -> PeerUnavailable:
        self.close()
        last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return PeerUnavailable(f"{self._driver}: {what}; its last words: {(last or ['none'])[-1][:300]}")


def serve(facts: Facts, measure: Callable[[int], list[float]]) -> None:
    """A driver's side of the lines: `measure(repeats)` gives speeds until its standard input ends."""
    _say({"name": facts.name, "device": facts.device, "more": dict(facts.more)})
    for line in sys.stdin:
        _say({"samples": measure(json.loads(line)["repeats"])})


def _say(value: Mapping[str, Any]) -> None:
    print(json.dumps(value), flush=True)

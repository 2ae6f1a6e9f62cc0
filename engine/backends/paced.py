"""A test engine that emits text at a chosen speed, to measure everything but the engine.

It computes no model: token k is due at a fixed time after the launch, and its id depends on its position
alone. Nothing that it produces is a measurement of speed. It is not among `open_backend`'s backends;
`worker --backend paced` is the only way to it, with a model of paced_models.py or any other whose tokenizer
should be used. Options:

    tok_s        tokens a second (1000)
    burst        tokens that come at once (1); more lets many engines share a small machine
    prefill_ms   time to the first token (20)
    align_ms     delay the first token to a multiple of this on time.monotonic(), 0 for not (0): a reader
                 on the same machine can then tell when every token was ready
    line         every how many tokens a line ends, 0 for never (0): pages lay lines out as they come
    rows         requests at once, each at the same speed (1)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import DeviceInfo, Job, OnStep, Outcome, Token, Topology, check_job, ignore_step
from engine.backends.paced_models import MARKDOWN, WORDS, recital
from engine.backends.prefix_cache import KeptSequence, PrefixCacheUse
from engine.errors import BackendUnavailable, RequestError
from engine.models.catalogue import Model
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.models.tokenizer import Tokenizer
from engine.timings import FinishReason

_DEFAULTS = {"tok_s": 1000.0, "burst": 1.0, "prefill_ms": 20.0, "align_ms": 0.0, "line": 0.0, "rows": 1.0}
_STRIDE = 7919
"""Prime and larger than any vocabulary's common divisors: neighbouring positions get unlike tokens."""


def open(model: Model, *, devices: int, options: Mapping[str, Any]) -> PacedBackend:
    """Raises BackendUnavailable for an unknown or impossible option, or a model without a tokenizer."""
    if devices != 1:
        raise BackendUnavailable(f"devices is {devices}; the backend paced has 1")
    unknown = sorted(set(options) - set(_DEFAULTS))
    if unknown:
        raise BackendUnavailable(
            f"the backend paced has no option {unknown[0]!r}; it takes {', '.join(_DEFAULTS)}"
        )
    try:
        values = {name: float(options.get(name, default)) for name, default in _DEFAULTS.items()}
    except (TypeError, ValueError) as error:
        raise BackendUnavailable(f"an option of the backend paced is not a number: {error}") from error
    for name, value in values.items():
        low = 1.0 if name in ("tok_s", "burst", "rows") else 0.0
        if not low <= value <= 1e6:
            raise BackendUnavailable(f"{name} is {value:g}; the backend paced allows {low:g} to 1000000")
    if model.tokenizer is None:
        raise BackendUnavailable(
            f"the model {model.config.name!r} has no tokenizer to take words from; use --model {WORDS}"
        )
    if model.config.name == MARKDOWN:
        return PacedBackend(model.config, _Recital(*recital()), values)
    # Printable ASCII: text that no browser trips over.
    ids = _spelling(model.tokenizer, model.config.vocab, lambda text: all(32 <= b < 127 for b in text))
    newlines = _spelling(model.tokenizer, model.config.vocab, lambda text: text == b"\n")
    if values["line"] and not newlines:
        raise BackendUnavailable(
            f"the model {model.config.name!r} has no token for a newline: leave out line"
        )
    return PacedBackend(model.config, _Words(ids, int(values["line"]), newlines[:1]), values)


class PacedBackend:
    """Implements engine.backends.base.Backend, but for `logits` and `measure_bandwidth`."""

    name = "paced"

    def __init__(self, config: ModelConfig, text: _Text, options: Mapping[str, float]) -> None:
        self.config = config
        self.topology = Topology(devices=(DeviceInfo(f"test clock at {options['tok_s']:g} tok/s"),))
        self.rows = int(options["rows"])
        self.facts: dict[str, Any] = {}
        self._text = text
        self._options = options

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        return PrefixCacheUse()

    def storage(self, name: str) -> Storage:  # noqa: ARG002 (all are alike)
        return Storage.F16

    def settle(self) -> None:
        """A launch leaves nothing."""

    def kept_sequences(self) -> list[KeptSequence]:
        return []

    def state(self) -> dict[str, Any]:
        return {}

    def launch(self, job: Job) -> PacedLaunch:
        check_job(self.config, job)
        options = self._options
        begin = time.monotonic_ns()
        first = begin + int(options["prefill_ms"] * 1e6)
        if align := int(options["align_ms"] * 1e6):
            first = -(-first // align) * align
        schedule = _Schedule(begin, first, 1e9 / options["tok_s"], int(options["burst"]))
        limit = min(job.max_tokens, self.config.context - len(job.tokens))
        return PacedLaunch(job, self._text, schedule, limit)

    def logits(
        self,
        tokens: Sequence[int],  # noqa: ARG002
        scored_from: int = 0,  # noqa: ARG002
        on_step: OnStep = ignore_step,  # noqa: ARG002
    ) -> NDArray[np.float32]:
        raise RequestError("the backend paced computes no model; benchmark another backend")

    def measure_bandwidth(self) -> tuple[float, ...]:
        raise RequestError("the backend paced reads no memory; benchmark another backend")

    def close(self) -> None:
        return


class _Text(Protocol):
    """Which token stands where, so that a generation that another launch continues has the same tokens."""

    def begin(self, prompt: Sequence[int]) -> int:
        """The place of the first token after `prompt`."""

    def token(self, place: int) -> int: ...


@dataclass(frozen=True, slots=True)
class _Words:
    """Words in no order, and at the end of every `line` tokens a newline (0: never)."""

    words: Sequence[int]
    line: int
    newline: Sequence[int]

    def begin(self, prompt: Sequence[int]) -> int:
        return len(prompt)

    def token(self, place: int) -> int:
        if self.line and (place + 1) % self.line == 0:
            return self.newline[0]
        return self.words[place * _STRIDE % len(self.words)]


@dataclass(frozen=True, slots=True)
class _Recital:
    """An answer from its beginning, over and over."""

    answer: Sequence[int]
    turn: int

    def begin(self, prompt: Sequence[int]) -> int:
        """Tokens after the prompt's last `turn` are of the answer already."""
        return list(reversed(prompt)).index(self.turn) if self.turn in prompt else 0

    def token(self, place: int) -> int:
        return self.answer[place % len(self.answer)]


@dataclass(frozen=True, slots=True)
class _Schedule:
    """When tokens are due, in nanoseconds of time.monotonic_ns(); the first one comes alone."""

    begin_ns: int
    first_ns: int
    gap_ns: float
    burst: int

    def due_ns(self, index: int) -> int:
        last_of_burst = -(-index // self.burst) * self.burst
        return self.first_ns + round(last_of_burst * self.gap_ns)

    def count(self, now_ns: int) -> int:
        """How many tokens are due by now."""
        if now_ns < self.first_ns:
            return 0
        elapsed = int((now_ns - self.first_ns) / self.gap_ns)
        return elapsed // self.burst * self.burst + 1


class PacedLaunch:
    """Implements engine.backends.base.Launch by the clock alone; times count from the launch."""

    def __init__(self, job: Job, text: _Text, schedule: _Schedule, limit: int) -> None:
        self._prompt = len(job.tokens)
        self._text = text
        self._begin = text.begin(job.tokens)
        self._schedule = schedule
        self._limit = limit
        self._given = 0
        self._stop = threading.Event()
        self._outcome: Outcome | None = None

    @property
    def prefilled(self) -> int:
        return self._prompt if time.monotonic_ns() >= self._schedule.first_ns else 0

    @property
    def outcome(self) -> Outcome | None:
        return self._outcome

    def poll(self, timeout: float) -> Sequence[Token]:
        if self._outcome is not None:
            return ()
        wait_ns = max(0, self._schedule.due_ns(self._given) - time.monotonic_ns())
        if self._stop.wait(min(timeout, wait_ns / 1e9)):
            self._end("cancelled")
            return ()
        due = min(self._limit, max(self._given, self._schedule.count(time.monotonic_ns())))
        tokens = [self._token(index) for index in range(self._given, due)]
        self._given = due
        if due == self._limit:
            self._end("length")
        return tokens

    def stop(self) -> None:
        self._stop.set()

    def close(self) -> None:
        self._end("cancelled")

    def _token(self, index: int) -> Token:
        return Token(
            self._text.token(self._begin + index), self._schedule.due_ns(index) - self._schedule.begin_ns
        )

    def _end(self, reason: FinishReason) -> None:
        if self._outcome is None:
            schedule = self._schedule
            self._outcome = Outcome(reason, self._prompt, schedule.first_ns - schedule.begin_ns)


def _spelling(tokenizer: Tokenizer, vocab: int, holds: Callable[[bytes], bool]) -> tuple[int, ...]:
    """The ids whose text `holds`."""
    spelled = ((token, tokenizer.token_bytes(token)) for token in range(vocab))
    return tuple(token for token, spelling in spelled if spelling and holds(spelling))

"""What a backend is: something that runs requests, prompt to last token, in one launch.

A launch has rows. Each is the place of one request, with a position, a window, sampling, stop ids and a token
sink of its own: it joins between two tokens of the others, has its prompt read in bounded pieces between
theirs, and leaves alone. What becomes of a request does not depend on the others, to the bit. Where a
backend has one row, a launch is one request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.backends.prefix_cache import KeptSequence, PrefixCacheUse
from engine.errors import BackendUnavailable, RequestError
from engine.kv_cache import KeysAndValues
from engine.models.config import Feature, ModelConfig
from engine.models.storage import Storage
from engine.models.weights import Weights
from engine.sampling import SamplingParams
from engine.timings import FinishReason, PhaseTime

OnStep = Callable[[], None]
"""Called between the steps of a long work; what it raises ends the work."""

MAILBOX, BARRIER = "mailbox", "barrier"
SYNCS = (MAILBOX, BARRIER)
"""How a phase may know that its input is there: by the words themselves, or by barriers between phases."""


class TraceRange(NamedTuple):
    """Which generated tokens to record in full: indexes first .. last - 1 (0 is the first new token)."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Job:
    """One request, in tokens. `tokens` is the prompt plus whatever an earlier worker already published.

    Draws depend on (seed, absolute position in the sequence) alone, so a job cut off after n tokens
    and started again with those n appended goes on exactly as it would have.
    """

    tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    sampled: int = 0
    """How many of the last `tokens` were generated: frequency and presence penalties count those."""
    stop_ids: frozenset[int] = frozenset()
    profile: bool = False
    trace: TraceRange | None = None
    cache_salt: str = ""
    """Whose it is: the launch may go on from a kept sequence with the same salt. Empty computes it all."""

    @property
    def is_measured(self) -> bool:
        """Whether it is to say where its time goes: then it runs alone, as no other row may add to that."""
        return self.profile or self.trace is not None

    def has_prompt_of(self, other: Job) -> bool:
        """Whether both are the same owner's, with the same tokens: what is read for one serves the other."""
        return bool(self.cache_salt) and (self.cache_salt, self.tokens) == (other.cache_salt, other.tokens)


class Token(NamedTuple):
    """One generated token and when it was ready, in nanoseconds of the launch's own clock."""

    id: int
    t_ns: int


@dataclass(frozen=True, slots=True)
class TraceSpan:
    """One block of a Chrome trace: `track` is an SM or a thread, times are microseconds of the launch."""

    name: str
    device: int
    track: int
    start_us: float
    duration_us: float
    kind: Literal["work", "wait_local", "wait_peer"] = "work"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a launch ended. `prefill_ns` runs from launch to the end of prefill, on the launch's clock."""

    finish_reason: FinishReason
    prefill_tokens: int
    """Tokens of the prompt that this launch computed."""
    prefill_ns: int
    phases_us: Mapping[str, PhaseTime] = field(default_factory=dict)
    trace: tuple[TraceSpan, ...] = ()
    cached_tokens: int = 0
    """Tokens of the prompt before them, whose keys and values were kept from an earlier sequence."""


class Launch(Protocol):
    """A request in flight: one row. Used by one thread; `stop` may be called from any."""

    @property
    def prefilled(self) -> int:
        """How many tokens of the prompt have keys and values so far, kept ones included."""
        ...

    @property
    def outcome(self) -> Outcome | None:
        """None while it runs. Tokens may still be waiting in `poll` when it appears."""
        ...

    def poll(self, timeout: float) -> Sequence[Token]:
        """Tokens since the last call; waits up to `timeout` seconds for at least one or for the end.

        A token in `stop_ids` ends the launch and is not returned. Raises BackendFailure if the device
        broke down.
        """
        ...

    def stop(self) -> None:
        """Asks the launch to end after the token it is computing; `finish_reason` becomes 'cancelled'."""
        ...

    def close(self) -> None:
        """Ends the launch and frees what it held. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """`datasheet_gbs` is 0 where no datasheet figure is known."""

    name: str
    datasheet_gbs: float = 0.0


@dataclass(frozen=True, slots=True)
class Topology:
    """How the model lies on the devices."""

    devices: tuple[DeviceInfo, ...]
    parallelism: Literal["none", "tp", "dtp"] = "none"
    lanes: int = 1
    link: str = ""


class Loaded(Protocol):
    """What a backend needs of a model (engine.models.catalogue.Model has more: tokenizer, source, digest)."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def weights(self) -> Weights: ...


def ignore_step() -> None:
    """For work that nobody ends."""


class Backend(Protocol):
    """A loaded model on some devices. At most `rows` requests at a time; one more raises RequestError."""

    name: str
    rows: int
    """How many requests it takes at once, each in a row of the same launch."""
    config: ModelConfig
    topology: Topology

    @property
    def facts(self) -> Mapping[str, Any]:
        """What of it decides whether two measurements may be compared: options, the kernels' build."""
        ...

    def storage(self, name: str) -> Storage | None:
        """How the matrix `name` (engine.models.weights) is kept in memory; None: in FP32."""
        ...

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        """Memory for the keys and values of recent sequences; a budget of 0 if it keeps none."""
        ...

    def settle(self) -> None:
        """Takes back what launches that have ended left, so that the next one need not begin with it."""
        ...

    def kept_sequences(self) -> list[KeptSequence]:
        """What the prefix cache holds, the least recently used first, what the last launch has left too."""
        ...

    def state(self) -> Mapping[str, Any]:
        """What it knows of the machine that changes by the minute, such as where its cores lie."""
        ...

    def launch(self, job: Job) -> Launch:
        """Starts a request, or lets it join those in flight; from any thread.

        Raises RequestError for a job that this model cannot run, or not beside those in flight; NoRoom if it
        could once memory for its keys and values is free.
        """
        ...

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        """Logits after each of `tokens` from index `scored_from` on: [len(tokens) - scored_from, vocab].

        The tokens before it are read as a prompt is. `on_step` is called now and then, up to a second apart
        on a slow backend; what it raises ends the work. Raises RequestError if `scored_from` is not an index
        of `tokens`, or the model cannot take them; NoRoom if it has to wait for launches in flight.
        """
        ...

    def measure_bandwidth(self) -> tuple[float, ...]:
        """Read bandwidth of each device beyond its caches, GB/s (10^9 bytes), measured now."""
        ...

    def close(self) -> None: ...


class ShowsCache(Backend, Protocol):
    """A backend that can keep keys and values in FP8: what it kept is what it is verified by."""

    def logits_and_cache(
        self, tokens: Sequence[int], scored_from: int = 0
    ) -> tuple[NDArray[np.float32], KeysAndValues]:
        """As `logits`, and what keys and values that pass has left."""
        ...

    def tokens_and_cache(self, job: Job) -> tuple[list[int], KeysAndValues]:
        """What a launch of `job`, alone, generates, and what keys and values it has left."""
        ...


def require_features(config: ModelConfig, supported: Collection[Feature], backend: str) -> None:
    """Raises BackendUnavailable if the model needs arithmetic that the backend has not."""
    lacking = sorted(feature.value for feature in config.features.difference(supported))
    if lacking:
        raise BackendUnavailable(
            f"the backend {backend} does not run models of the family {config.family} yet: it lacks"
            f" {' and '.join(lacking)}; use the backend numpy"
        )


def check_job(config: ModelConfig, job: Job) -> None:
    """Raises RequestError if `job` cannot run on a model of this shape."""
    check_ids(config, job.tokens)
    if job.max_tokens < 1:
        raise RequestError(f"max_tokens is {job.max_tokens}; it must be at least 1")
    unknown = next((token for token, _ in job.sampling.logit_bias if token >= config.vocab), None)
    if unknown is not None:
        raise RequestError(
            f"logit_bias names the token id {unknown}, which is not in the vocabulary (0 to"
            f" {config.vocab - 1})"
        )
    if len(job.tokens) >= config.context:
        raise RequestError(
            f"the prompt is too long: it has {len(job.tokens):,} tokens, and {config.name} takes at most"
            f" {config.context - 1:,}; shorten it"
        )


def check_ids(config: ModelConfig, tokens: Sequence[int]) -> None:
    """Raises RequestError if `tokens` is empty or names an id that the vocabulary has not."""
    if not tokens:
        raise RequestError("the prompt has no tokens; it must have at least one")
    for token in (min(tokens), max(tokens)):
        if not 0 <= token < config.vocab:
            raise RequestError(f"token id {token} is not in the vocabulary (0 to {config.vocab - 1})")


def check_sequence(config: ModelConfig, tokens: Sequence[int], scored_from: int = 0) -> None:
    """Raises RequestError if `tokens` is not a sequence that the model can score from that index on."""
    check_ids(config, tokens)
    if not 0 <= scored_from < len(tokens):
        raise RequestError(
            f"logits are asked for from token {scored_from} on; the last one is {len(tokens) - 1}"
        )
    if len(tokens) > config.context:
        raise RequestError(
            f"the sequence has {len(tokens)} tokens; {config.name} takes at most {config.context}: shorten it"
        )

"""One benchmark point, by a fixed protocol.

Protocol `monolane-bench-3`. A change to what is timed or written, or how, gets a new number. What is timed is
that of `monolane-bench-2`, which warmed up for one second, and of `monolane-bench-1`, whose intervals were
narrower than few repeats allow and whose verification looked at tokens alone: speeds of all are one series.

1. Prompt: `context` tokens, the same every time: source code where the model has a tokenizer, else ids
   drawn from Philox(0). Stop tokens do not stop: every run generates exactly `tokens` tokens.
2. Read bandwidth of each device, measured before the warm-up and again after the last timed run; the
   higher one counts, which makes the utilisation the lower one. Where it would still be above 1, other
   load disturbed both, and they are measured up to EXTRA_READS times more.
3. Warm-up: whole runs, untimed, until one has ended and WARM_UP_S seconds have passed.
4. `repeats` timed runs, one launch each, nothing else in between. Of each run:
   - decode tok/s = (tokens - 1) / (t_last - t_first), stamped by the launch's own clock (the kernel's,
     where there is one), so that neither prefill nor the way to the host counts;
   - inter-token latency: the differences of those stamps, pooled over the runs;
   - time to first token: from before `launch()` until the first token is in the host's hands, by the
     host's monotonic clock. Tokens are polled for, each poll wakes at the first one;
   - prefill tok/s = prompt tokens / time until the end of prefill, by the launch's clock.
   Any run that fails, stops early or whose clock stands still is an error, never a number.
   A warm point goes on from what the warm-up left of the same prompt, as the second request of one owner
   does; its settings say how many tokens of the prompt were there (`cached_tokens`). Nothing is kept for
   any other point.
   A point of several `streams` launches as many requests at once, each with a prompt that begins elsewhere in
   the same text. They have room for more than `tokens` tokens and are stopped once each has as many. Decode
   tok/s and gaps are those of the time in which all of them decode, from the last one's first token on; a
   repeat's speed is that of one stream, the mean of all, and the samples hold each.
5. One more run with the profile on (and the trace, if asked for). Its timings are not used. What is
   profiled runs alone: a point of several streams has none.
6. Verification (verification.py): the greedy tokens of the timed runs, which must be the same in all
   of them, and the logits before them, against another computation. A sampled point is verified by one
   more, greedy, run. Logits that are not finite are an error. Of several streams each must give the tokens
   that it gives alone, and the first one's are compared.

Speeds are medians over the repeats with a bootstrap interval; bytes a token are the mean over the
decode steps, with weights as wide as the checkpoint holds them (16 bits, or 32) whatever the backend
keeps in memory, and KV at 16 bits: utilisation compares what a token must read with what memory gives.
Streams share the weights that a step reads, and each has keys and values of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np

from engine.backends.base import MAILBOX, Backend, Job, Loaded, Outcome, TraceRange, TraceSpan
from engine.errors import BackendFailure, EngineError, RequestError
from engine.measuring import environment
from engine.measuring.bandwidth import datasheet_gbs
from engine.measuring.measurement import (
    BytesPerToken,
    DecodeSpeed,
    FirstToken,
    InterTokenLatency,
    Mbu,
    MeasuredDevice,
    MeasuredModel,
    Measurement,
    PrefillSpeed,
    Samples,
    Settings,
    Verified,
)
from engine.measuring.roofline import mbu, mean_bytes_per_token
from engine.measuring.runs import Repeat, Run, run_together
from engine.measuring.statistics import median, median_interval, quantile
from engine.measuring.verification import verify
from engine.measuring.weight_format import weight_format
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.models.weights import storage_of
from engine.progress import OnProgress, Progress, ignore_progress
from engine.sampling import SamplingParams
from engine.timings import FinishReason

PROTOCOL = "monolane-bench-3"
WARM_UP_S = 3.0
"""Longer than a device that idled needs to find the clock that its power allows (docs/measuring.md)."""
PROGRESS_S = 0.25
EXTRA_READS = 3
_TRIES = 5
_ENDS_OF_STREAMS: tuple[FinishReason, ...] = ("length", "cancelled")
"""Of several: each is stopped, unless it had no room for more."""
_WARM = "bench"
"""Whose prompts those of warm points are."""
_APART = 16
"""Tokens between the beginnings of two streams' prompts."""
_LEAST_BLOCK = 12
"""Prompt tokens that a backend reads between two tokens of the other streams, at least."""


_TEXT = '''\
def merge(left, right):
    """Merges two sorted lists into one sorted list."""
    merged = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


class Stack:
    """Last in, first out."""

    def __init__(self):
        self.items = []

    def push(self, item):
        self.items.append(item)

    def pop(self):
        if not self.items:
            raise IndexError("pop from an empty stack")
        return self.items.pop()


'''
"""The prompt, repeated as often as a context needs it. Changing it changes the protocol."""


class BenchStopped(EngineError):
    """Someone asked a benchmark to stop; it has no result."""


class Tokenizes(Protocol):
    @property
    def bos_id(self) -> int | None: ...

    def encode(self, text: str) -> list[int]: ...


class Model(Loaded, Protocol):
    """What a benchmark needs of a model (engine.models.catalogue.Model has it)."""

    @property
    def tokenizer(self) -> Tokenizes | None: ...

    @property
    def digest(self) -> str: ...


@dataclass(frozen=True)
class Point:
    """What to measure: `tokens` new tokens after a prompt of `context` tokens, `repeats` times."""

    context: int
    tokens: int
    repeats: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    trace: TraceRange | None = None
    warm: bool = False
    """Whether the prompt's keys and values are those of the run before, as far as the backend keeps them."""
    streams: int = 1
    """Requests side by side."""

    @property
    def room(self) -> int:
        """Tokens that a stream may generate. Several need more: the first goes on while others begin."""
        if self.streams == 1:
            return self.tokens
        return 2 * self.tokens + (self.streams - 1) * -(-self.context // _LEAST_BLOCK)


def run_point(
    backend: Backend,
    model: Model,
    point: Point,
    *,
    on_progress: OnProgress = ignore_progress,
    stop: Callable[[], bool] | None = None,
    on_trace: Callable[[Sequence[TraceSpan]], None] | None = None,
    verifier: Callable[[Sequence[int], Sequence[int]], Verified] | None = None,
    commit: str = "",
) -> Measurement:
    """Measures one point by the protocol above.

    `stop` is asked after every poll. `on_trace` receives the spans of `point.trace`. `verifier` takes the
    place of verification.py: it is given the prompt and the greedy tokens. `commit` is that of this
    code where no repository tells it. Raises RequestError for a point that this model cannot run,
    BackendFailure if a run breaks down, BenchStopped, MeasurementError.
    """
    check_point(model.config, point)
    require_rows(backend, model.config.name, point.streams)
    bench = _Bench(backend, point, prompts_of(model, point), on_progress, stop)
    before = environment.state(backend)
    bandwidth = backend.measure_bandwidth()
    bench.warm_up()
    runs = [bench.run(f"timed run {i + 1}") for i in range(point.repeats)]
    after = environment.state(backend)
    step_bytes = _token_bytes(backend, model, point).of_step(point.streams)
    needed_gbs = step_bytes * median([run.tok_s for run in runs]) / 1e9
    for reading in range(1 + EXTRA_READS):
        if reading == 0 or 0 < sum(bandwidth) < needed_gbs:
            bandwidth = tuple(max(pair) for pair in zip(bandwidth, backend.measure_bandwidth(), strict=True))
    profile = bench.profile()
    if on_trace is not None and profile is not None:
        on_trace(profile.trace)
    check = verifier or (lambda prompt, tokens: verify(backend, model, prompt, tokens))
    verified = _verify(bench, runs, check)
    facts = environment.capture(backend, model, commit=commit)
    facts["state"] = {"before": before, "after": after}
    facts["protocol"] = PROTOCOL
    measurement = _measurement(backend, model, point, runs, bandwidth, profile, verified, facts)
    measurement.check()
    return measurement


def check_point(config: ModelConfig, point: Point) -> None:
    """Raises RequestError if `point` cannot be measured on a model of this shape."""
    for name, value, least in (
        ("context", point.context, 1),
        ("tokens", point.tokens, 2),
        ("repeats", point.repeats, 1),
        ("streams", point.streams, 1),
    ):
        if value < least:
            raise RequestError(f"{name} is {value}; a benchmark point needs at least {least}")
    if point.context + point.room > config.context:
        many = "" if point.streams == 1 else f" for each of {point.streams} streams"
        raise RequestError(
            f"a context of {point.context} and {point.room} tokens{many} are {point.context + point.room}"
            f" positions; {config.name} has {config.context}: ask for less of either"
        )
    if point.trace is not None and not 0 <= point.trace.first < point.trace.last <= point.tokens:
        raise RequestError(
            f"the trace is of tokens {point.trace.first} to {point.trace.last}; it must be a range within"
            f" 0 to {point.tokens}"
        )


def require_rows(backend: Backend, model: str, streams: int) -> None:
    """Raises RequestError if the backend does not take so many requests to the model of that name at once."""
    if streams > backend.rows:
        at_once = "one at a time" if backend.rows == 1 else f"{backend.rows} at once"
        raise RequestError(
            f"streams is {streams}; {model} takes {at_once} on {backend.name}"
            f" x{len(backend.topology.devices)} as it is open: ask for no more"
        )


def prompt_tokens(model: Model, context: int) -> tuple[int, ...]:
    """The protocol's prompt of exactly `context` tokens."""
    if model.tokenizer is None:
        draw = np.random.Generator(np.random.Philox(0))
        return tuple(int(t) for t in draw.integers(0, model.config.vocab, context))
    start = [] if model.tokenizer.bos_id is None else [model.tokenizer.bos_id]
    copies = 1
    while len(tokens := start + model.tokenizer.encode(_TEXT * copies)) < context:
        copies *= 2
    return tuple(tokens[:context])


def prompts_of(model: Model, point: Point) -> list[tuple[int, ...]]:
    """The protocol's prompts of a point, one a stream."""
    text = prompt_tokens(model, point.context + (point.streams - 1) * _APART)
    return [text[start : start + point.context] for start in range(0, point.streams * _APART, _APART)]


class _Bench:
    """Runs launches of one point, and tells how far they are."""

    def __init__(
        self,
        backend: Backend,
        point: Point,
        prompts: Sequence[tuple[int, ...]],
        on_progress: OnProgress,
        stop: Callable[[], bool] | None,
    ) -> None:
        self.prompts = prompts
        self._backend = backend
        self.point = point
        self._on_progress = on_progress
        self._stop = stop or (lambda: False)
        greedy_run = point.sampling != SamplingParams()
        together = (1 + point.repeats) * point.streams
        alone = (1 if point.streams == 1 else point.streams) + greedy_run
        self._total = (together + alone) * point.tokens
        self._done = 0
        self._shown = 0
        self._told = 0.0

    def warm_up(self) -> None:
        start = time.monotonic()
        self.run("warm-up")
        while time.monotonic() - start < WARM_UP_S:
            self._done = 0  # however many it takes, they count as one run of the progress
            self.run("warm-up")

    def run(self, what: str) -> Repeat:
        """All streams side by side. Raises BackendFailure, naming `what`, if it is not whole.

        It is tried again where the first stream of a fast model ends soon after the last one begins.
        """
        jobs = [self._job(prompt, self.point.room) for prompt in self.prompts]
        for _ in range(_TRIES):
            repeat = self._launch(what, jobs)
            if len(jobs) == 1 or all(len(run.tokens) > self.point.tokens // 2 for run in repeat.timed):
                return repeat
            self._done -= self.point.tokens * len(jobs)
        raise BackendFailure(
            f"{what}: in {_TRIES} tries {len(jobs)} streams were never decoded at the same time for half of"
            f" {self.point.tokens} tokens; ask for more"
        )

    def run_alone(self, stream: int) -> Repeat:
        """One of several streams without the others."""
        return self._launch(
            f"stream {stream + 1} alone", [self._job(self.prompts[stream], self.point.tokens)]
        )

    def run_greedily(self) -> Repeat:
        """The first stream alone, whatever the point's sampling is."""
        job = self._job(self.prompts[0], self.point.tokens)
        return self._launch("greedy run", [replace(job, sampling=SamplingParams())])

    def profile(self) -> Outcome | None:
        """What a profiled (and traced) run says. None of several streams: what is profiled runs alone."""
        if self.point.streams > 1:
            return None
        job = replace(self._job(self.prompts[0], self.point.tokens), profile=True, trace=self.point.trace)
        return self._launch("profile", [job]).runs[0].outcome

    def _job(self, prompt: tuple[int, ...], room: int) -> Job:
        return Job(prompt, room, self.point.sampling, cache_salt=_WARM if self.point.warm else "")

    def _launch(self, what: str, jobs: Sequence[Job]) -> Repeat:
        asked = self.point.tokens
        repeat = run_together(self._backend, jobs, asked, self._on_tokens)
        self._done += asked * len(jobs)
        for run in repeat.runs:
            reason = run.outcome.finish_reason
            if len(run.tokens) < asked or reason not in (("length",) if len(jobs) == 1 else _ENDS_OF_STREAMS):
                raise BackendFailure(
                    f"{what} ended after {len(run.tokens)} of {asked} tokens with {reason!r};"
                    " a run that is not whole is not measured"
                )
            if run.tokens[-1].t_ns <= run.tokens[0].t_ns:
                raise BackendFailure(f"{what}: the clock of the backend {self._backend.name} stood still")
        return repeat

    def _on_tokens(self, counts: Sequence[int]) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_S:
            self._told = now
            done = sum(min(count, self.point.tokens) for count in counts)
            self._shown = max(self._shown, self._done + done)
            self._on_progress(Progress(self._shown, self._total, "tokens"))
        if self._stop():
            raise BenchStopped("the benchmark was stopped before it had a result")


def _verify(
    bench: _Bench, runs: Sequence[Repeat], check: Callable[[Sequence[int], Sequence[int]], Verified]
) -> Verified:
    tokens = bench.point.tokens
    first = _ids(runs[0], tokens)
    greedy = first[0]
    if bench.point.sampling != SamplingParams():
        greedy = _ids(bench.run_greedily(), tokens)[0]
    found = check(bench.prompts[0], greedy)
    if any(_ids(run, tokens) != first for run in runs):
        return replace(found, against=f"{found.against}; the repeats' tokens differ", tokens_equal=False)
    streams = range(bench.point.streams) if bench.point.streams > 1 else ()
    if any(_ids(bench.run_alone(stream), tokens) != [first[stream]] for stream in streams):
        return replace(
            found, against=f"{found.against}; a stream's tokens differ from those alone", tokens_equal=False
        )
    return found


def _ids(repeat: Repeat, tokens: int) -> list[list[int]]:
    """Of each stream the first `tokens`."""
    return [run.ids[:tokens] for run in repeat.runs]


def _measurement(
    backend: Backend,
    model: Model,
    point: Point,
    runs: Sequence[Repeat],
    bandwidth: tuple[float, ...],
    profile: Outcome | None,
    verified: Verified,
    facts: dict[str, Any],
) -> Measurement:
    speeds = tuple(run.tok_s for run in runs)
    each = [run for repeat in runs for run in repeat.runs]
    read, devices = _token_bytes(backend, model, point), _devices(backend, bandwidth)
    step = read.of_step(point.streams)
    return Measurement(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        git_sha=str(facts.get("git", {}).get("sha", "unknown")),
        model=MeasuredModel(
            model.config.name,
            model.config.parameters,
            read,
            weight_format(backend, model),
            model.config.active_parameters if model.config.experts else None,
        ),
        backend=backend.name,
        devices=devices,
        settings=_settings(backend, model, point, _cached_tokens(backend, point, each)),
        decode=DecodeSpeed(median(speeds), median_interval(speeds), speeds),
        itl_us=_latency([gap for repeat in runs for run in repeat.timed for gap in run.gaps_us]),
        prefill=PrefillSpeed(median([run.prefill_tok_s for run in each]), each[0].outcome.prefill_tokens),
        ttft_ms=FirstToken(median([run.ttft_ns / 1e6 for run in each]), len(each)),
        mbu=Mbu(
            datasheet=_share(step, median(speeds), [d.datasheet_gbs for d in devices]),
            measured=_share(step, median(speeds), [d.measured_gbs for d in devices]),
        ),
        phases_us=profile.phases_us if profile else {},
        verified=verified,
        environment=facts,
        samples=_samples(runs),
    )


def _devices(backend: Backend, bandwidth: Sequence[float]) -> tuple[MeasuredDevice, ...]:
    return tuple(
        MeasuredDevice(d.name, d.datasheet_gbs or datasheet_gbs(d.name), gbs)
        for d, gbs in zip(backend.topology.devices, bandwidth, strict=True)
    )


def _cached_tokens(backend: Backend, point: Point, runs: Iterable[Run]) -> int:
    """How many tokens of the prompt each run found there. Raises RequestError if a warm point has none."""
    found = {run.outcome.cached_tokens for run in runs}
    if point.warm and min(found) == 0:
        use = backend.prefix_cache
        raise RequestError(
            f"the point is warm, but the backend {backend.name} kept nothing of a prompt of {point.context}"
            f" tokens (its budget is {use.budget_bytes >> 20} MiB): raise prefix_cache_mib or the context"
        )
    if len(found) > 1:
        raise BackendFailure(f"the runs went on from {sorted(found)} kept tokens; they must all do the same")
    return found.pop()


def _settings(backend: Backend, model: Model, point: Point, cached_tokens: int) -> Settings:
    topology = backend.topology
    return Settings(
        context=point.context,
        tokens=point.tokens,
        repeats=point.repeats,
        devices=len(topology.devices),
        parallelism=topology.parallelism,
        delay=model.config.lanes.delay,
        lanes=topology.lanes,
        sync=str(backend.facts.get("sync", MAILBOX)),
        sampling=point.sampling,
        cached_tokens=cached_tokens,
        streams=point.streams,
    )


def _samples(runs: Sequence[Repeat]) -> Samples:
    """Rounded to what the clocks are worth: a file keeps thousands."""
    each = [run for repeat in runs for run in repeat.runs]
    several = len(runs[0].runs) > 1
    return Samples(
        ttft_ms=tuple(round(run.ttft_ns / 1e6, 4) for run in each),
        prefill_tok_s=tuple(round(run.prefill_tok_s, 2) for run in each),
        itl_us=tuple(tuple(round(gap, 2) for run in repeat.timed for gap in run.gaps_us) for repeat in runs),
        stream_tok_s=tuple(repeat.stream_tok_s for repeat in runs) if several else (),
    )


def _token_bytes(backend: Backend, model: Model, point: Point) -> BytesPerToken:
    """What a decode step of this point reads on average, of weights as the backend keeps them; copies in
    FP32 count as what they were made from."""

    def kept(name: str) -> Storage | None:
        found = backend.storage(name)
        return storage_of(model.weights, name) if found is None and model.weights.native != "f32" else found

    return mean_bytes_per_token(model.config, point.context, point.tokens, kept)


def _latency(gaps_us: Sequence[float]) -> InterTokenLatency:
    return InterTokenLatency(
        p50=median(gaps_us), p90=quantile(gaps_us, 0.9), p99=quantile(gaps_us, 0.99), n=len(gaps_us)
    )


def _share(token_bytes: int, tok_s: float, gbs: Sequence[float]) -> float | None:
    """MBU over all devices; None if the bandwidth of one is unknown."""
    return mbu(token_bytes, tok_s, sum(gbs)) if gbs and all(g > 0 for g in gbs) else None

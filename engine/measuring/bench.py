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
keeps in memory, and KV at 16 bits, or 8 of a cache in FP8: utilisation compares what a token must read
with what memory gives. Streams share the weights that a step reads, and each has keys and values of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from engine.backends.base import Backend, Job, Outcome, TraceSpan
from engine.errors import BackendFailure, EngineError
from engine.measuring import environment
from engine.measuring.measurement import Measurement, Verified
from engine.measuring.point import Model, Point, check_point, prompts_of, require_rows
from engine.measuring.runs import Repeat, run_together
from engine.measuring.statistics import median
from engine.measuring.summary import summarize, token_bytes
from engine.measuring.verification import verify
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


class BenchStopped(EngineError):
    """Someone asked a benchmark to stop; it has no result."""


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
    step_bytes = token_bytes(backend, model, point).of_step(point.streams)
    needed_gbs = step_bytes * median([run.tok_s for run in runs]) / 1e9
    for reading in range(1 + EXTRA_READS):
        if reading == 0 or 0 < sum(bandwidth) < needed_gbs:
            bandwidth = tuple(max(pair) for pair in zip(bandwidth, backend.measure_bandwidth(), strict=True))
    profile = bench.profile()
    if on_trace is not None and profile is not None:
        on_trace(profile.trace)
    salt = _WARM if point.warm else ""
    check = verifier or partial(verify, backend, model, cache_salt=salt, on_progress=bench.on_compared)
    verified = _verify(bench, runs, check)
    facts = environment.capture(backend, model, commit=commit)
    facts["state"] = {"before": before, "after": after}
    facts["protocol"] = PROTOCOL
    measurement = summarize(backend, model, point, runs, bandwidth, profile, verified, facts)
    measurement.check()
    return measurement


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

    def on_compared(self, progress: Progress) -> None:
        """Of what follows the runs."""
        self._on_progress(progress)
        self._require_wanted()

    def _on_tokens(self, counts: Sequence[int]) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_S:
            self._told = now
            done = sum(min(count, self.point.tokens) for count in counts)
            self._shown = max(self._shown, self._done + done)
            self._on_progress(Progress(self._shown, self._total, "tokens"))
        self._require_wanted()

    def _require_wanted(self) -> None:
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

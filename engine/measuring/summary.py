"""What the runs of a benchmark point say: the measurement that is written of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from engine.backends.base import MAILBOX, Backend, Outcome
from engine.errors import BackendFailure, RequestError
from engine.kv_cache import kept_format
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
from engine.measuring.point import Model, Point
from engine.measuring.roofline import mbu, mean_bytes_per_token
from engine.measuring.runs import Repeat, Run
from engine.measuring.statistics import median, median_interval, quantile
from engine.measuring.weight_format import weight_format
from engine.models.storage import Storage
from engine.models.weights import storage_of


def summarize(
    backend: Backend,
    model: Model,
    point: Point,
    runs: Sequence[Repeat],
    bandwidth: tuple[float, ...],
    profile: Outcome | None,
    verified: Verified,
    facts: dict[str, Any],
) -> Measurement:
    """Medians and intervals over the repeats `runs`, with what the profiled run and the verification say."""
    speeds = tuple(run.tok_s for run in runs)
    each = [run for repeat in runs for run in repeat.runs]
    read, devices = token_bytes(backend, model, point), _devices(backend, bandwidth)
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
        cache=kept_format(backend.facts).value,
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


def token_bytes(backend: Backend, model: Model, point: Point) -> BytesPerToken:
    """What a decode step of this point reads on average, of weights, keys and values as the backend keeps
    them; copies in FP32 count as what they were made from."""

    def kept(name: str) -> Storage | None:
        found = backend.storage(name)
        return storage_of(model.weights, name) if found is None and model.weights.native != "f32" else found

    of_cache = kept_format(backend.facts).bytes_each
    return mean_bytes_per_token(model.config, point.context, point.tokens, kept, kv_bytes=of_cache)


def _latency(gaps_us: Sequence[float]) -> InterTokenLatency:
    return InterTokenLatency(
        p50=median(gaps_us), p90=quantile(gaps_us, 0.9), p99=quantile(gaps_us, 0.99), n=len(gaps_us)
    )


def _share(token_bytes: int, tok_s: float, gbs: Sequence[float]) -> float | None:
    """MBU over all devices; None if the bandwidth of one is unknown."""
    return mbu(token_bytes, tok_s, sum(gbs)) if gbs and all(g > 0 for g in gbs) else None

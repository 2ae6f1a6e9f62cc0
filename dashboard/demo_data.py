"""A database full of made-up measurements, to see what a large one costs. No figure in it was measured."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from dashboard.measurements.ingest import columns_of
from dashboard.models import (
    Annotation,
    AuditEntry,
    Configuration,
    Measurement,
    MetricInterval,
    Peer,
    Point,
    Regression,
    RegressionStatus,
    State,
    SweepRun,
    Trace,
    Trigger,
)
from dashboard.regressions.services import judge_configurations
from engine.backends.base import TraceSpan
from engine.measuring.measurement import Measurement as Result
from engine.measuring.trace import chrome_trace, pack_trace

BATCH = 500
FIRST_DAY = datetime(2025, 1, 1, tzinfo=UTC)
HARDWARE = ("made-up device A", "made-up device B", "2 x made-up device A", "made-up CPU")
MODELS = ("made-up-2b", "made-up-1b", "made-up-135m")
CONTEXTS = (32, 128, 256, 1024, 4096)


def fill(count: int) -> Iterator[int]:
    """Writes `count` measurements and what comes with them; yields how many there are by now.

    For a hundred measurements: 20 points of sweeps (one failed), 5 lines of the audit log, and a closed
    regression; a few notes and peers, one trace.
    """
    configurations = Configuration.objects.bulk_create(_configurations())
    each = -(-count // len(configurations))
    for number, configuration in enumerate(configurations):
        add_history(configuration, min(each, count - number * each))
        yield min(count, (number + 1) * each)
    judge_configurations(one.pk for one in configurations)
    add_sweeps(max(1, count // 100))
    _fill_regressions(configurations, max(1, count // 100))
    _fill_words(max(1, count // 100))
    _fill_trace()


def _configurations() -> Iterator[Configuration]:
    for hardware in HARDWARE:
        for model in MODELS:
            for context in CONTEXTS:
                yield Configuration(
                    model=model, backend="made-up", hardware=hardware, devices=1, parallelism="none",
                    context=context, tokens=64, sampling="greedy",
                )  # fmt: skip


def add_history(configuration: Configuration, count: int, first: int = 0) -> None:
    """So many runs of it, beginning with number `first`."""
    rng = np.random.default_rng((configuration.pk, first))
    rows = list(_rows(configuration, first, first + count, rng))
    for at in range(0, len(rows), BATCH):
        stored = Measurement.objects.bulk_create([row for row, _ in rows[at : at + BATCH]])
        MetricInterval.objects.bulk_create(
            MetricInterval(measurement=row, **spread)
            for row, (_, spread) in zip(stored, rows[at : at + BATCH], strict=True)
        )


def _rows(
    configuration: Configuration, first: int, end: int, rng: np.random.Generator
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """A history with two steps and noise of half a percent; three runs a commit."""
    base = 200.0 + 20.0 * (configuration.pk % 40)
    for index in range(first, end):
        level = base * (1.0 + 0.08 * (index > end // 3) + 0.05 * (index > 2 * end // 3))
        speed = float(level * rng.normal(1.0, 0.005))
        created = FIRST_DAY + timedelta(hours=6 * index, minutes=configuration.pk)
        commit = hashlib.sha256(f"{index // 3}".encode()).hexdigest()[:40]
        document = _document(configuration, speed, created, commit, rng)
        columns = columns_of(Result.from_dict(document))
        digest = hashlib.sha256(f"{configuration.pk} {index}".encode()).hexdigest()
        spread = {
            "ttft_low": columns["ttft_ms"] * 0.99, "ttft_high": columns["ttft_ms"] * 1.02, "ttft_n": 5,
            "prefill_low": 990.0, "prefill_high": 1010.0,
            "itl_p50_low": columns["itl_p50"] * 0.995, "itl_p50_high": columns["itl_p50"] * 1.005,
            "itl_n": 315,
        }  # fmt: skip
        yield (
            Measurement(
                configuration=configuration, digest=digest, source="made up", document=document, **columns
            ),
            spread,
        )


def _document(
    configuration: Configuration, speed: float, created: datetime, sha: str, rng: np.random.Generator
) -> dict[str, Any]:
    gaps = np.round(rng.gamma(400.0, 1e6 / speed / 400.0, (5, 63)), 2)
    samples = [round(float(s), 3) for s in speed * rng.normal(1.0, 0.004, 5)]
    middle = float(np.median(samples))
    phases = ("qkv", "attention", "attn_out", "gate_up", "down", "head")
    ttft = float(rng.normal(12.0, 0.2))
    return {
        "schema": 1, "created": created.isoformat(), "git_sha": sha,
        "model": {
            "name": configuration.model, "params": 10**9,
            "bytes_per_token": {"weights": 2 * 10**9, "kv": 10**7},
        },
        "backend": configuration.backend,
        "devices": [{"name": configuration.hardware, "datasheet_gbs": 4800.0, "measured_gbs": 4500.0}],
        "settings": {"context": configuration.context, "tokens": 64, "repeats": 5},
        "decode": {
            "tok_s": {"median": middle, "ci95": [min(samples), max(samples)], "samples": samples},
            "itl_us": {
                "p50": float(np.median(gaps)), "p90": float(np.quantile(gaps, 0.9)), "p99": None, "n": 315
            },
        },
        "prefill": {"tok_s": 1000.0, "tokens": configuration.context},
        "ttft_ms": {"p50": ttft, "n": 5},
        "mbu": {"datasheet": 0.4, "measured": 0.45},
        "phases_us": {p: {"work": 1e5 / speed, "wait_local": 2e4 / speed, "wait_peer": 0.0} for p in phases},
        "verified": {"against": "nothing: made up", "tokens_equal": True, "logit_rel_err": None},
        "environment": {"python": "3.11", "gpus": [{"name": configuration.hardware, "driver": "1"}]},
        "samples": {"ttft_ms": [ttft] * 5, "prefill_tok_s": [1000.0] * 5, "itl_us": gaps.tolist()},
    }  # fmt: skip


def add_sweeps(runs: int) -> None:
    """So many ended runs of 20 points each; of each the last point failed."""
    made = SweepRun.objects.bulk_create(_sweep_run(FIRST_DAY + timedelta(hours=9 * n)) for n in range(runs))
    Point.objects.bulk_create(
        (_point(run, index) for run in made for index in range(20)),
        batch_size=BATCH,
    )


def _sweep_run(created: datetime) -> SweepRun:
    return SweepRun(
        name="made-up", repeats=5, device="cpu", state=State.FAILED, trigger=Trigger.SCHEDULE, done=20,
        total=20, created=created, ended=created + timedelta(hours=1),
    )  # fmt: skip


def _point(run: SweepRun, index: int) -> Point:
    started = run.created + timedelta(minutes=index)
    failed = index == 19
    return Point(
        run=run, index=index, model=MODELS[index % 3], backend="made-up", devices=1,
        context=CONTEXTS[index % 5], tokens=64, state=State.FAILED if failed else State.FINISHED,
        request_id=f"made-up-{run.pk}-{index}", worker="made-up", error_code="made_up" if failed else "",
        error="A made-up failure." if failed else "", started=started, ended=started + timedelta(seconds=40),
    )  # fmt: skip


def _fill_regressions(configurations: list[Configuration], count: int) -> None:
    """So many that are closed, and one that stands for every fourth configuration."""
    Regression.objects.bulk_create(
        [
            _regression(configurations[n % len(configurations)], n, RegressionStatus.RECOVERED)
            for n in range(count)
        ]
        + [_regression(one, n, RegressionStatus.OPEN) for n, one in enumerate(configurations[::4])],
        batch_size=BATCH,
        ignore_conflicts=True,
    )


def _regression(configuration: Configuration, number: int, fate: RegressionStatus) -> Regression:
    opened = FIRST_DAY + timedelta(hours=number)
    return Regression(
        configuration=configuration, metric="tok_s", fate=fate, baseline=100.0, threshold=0.03, value=90.0,
        good_sha="0" * 40, bad_sha="1" * 40, since=opened, opened=opened,
        closed=opened + timedelta(hours=2) if fate is RegressionStatus.RECOVERED else None,
    )  # fmt: skip


def _fill_words(count: int) -> None:
    AuditEntry.objects.bulk_create(
        (
            AuditEntry(
                by="made-up", act="sweep started", about=f"made-up #{n}", when=FIRST_DAY + timedelta(hours=n)
            )
            for n in range(5 * count)
        ),
        batch_size=BATCH,
    )
    Annotation.objects.bulk_create(
        Annotation(at=FIRST_DAY + timedelta(days=n), text=f"made-up note {n}", source="made up")
        for n in range(min(count, 50))
    )
    Peer.objects.bulk_create(
        Peer(
            name=f"made-up peer {n}", model=model, hardware=hardware, context=256, tok_s=100.0 + n,
            ci_low=99.0 + n, ci_high=101.0 + n, samples=7, source="made up",
            digest=hashlib.sha256(f"{model} {hardware} {n}".encode()).hexdigest(),
        )
        for model in MODELS for hardware in HARDWARE for n in range(3)
    )  # fmt: skip


def _fill_trace() -> None:
    """A token on 132 tracks, as a large GPU records it, with the newest measurement."""
    spans = [
        TraceSpan(f"phase {step % 5}", 0, track, 2.0 * step, 1.9)
        for track in range(132)
        for step in range(120)
    ]
    Trace.objects.create(
        measurement=Measurement.objects.latest("pk"), source="made up",
        content=pack_trace(chrome_trace(spans)), spans=len(spans), tracks=132, duration_us=240.0,
    )  # fmt: skip

"""Made-up measurements and rows. No value here was measured; none may leave the tests."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from dashboard.measurements.services import record_measurement
from dashboard.models import Measurement, Sweep, SweepRun, Trigger
from dashboard.sweeps import services
from engine.measuring.measurement import (
    BytesPerToken,
    DecodeSpeed,
    FirstToken,
    InterTokenLatency,
    Mbu,
    MeasuredDevice,
    MeasuredModel,
    PrefillSpeed,
    Settings,
    Verified,
)
from engine.measuring.measurement import Measurement as Result
from engine.sampling import SamplingParams
from engine.timings import PhaseTime

DAY = datetime(2026, 1, 1, 12, tzinfo=UTC)
GBS = ("datasheet_gbs", "measured_gbs")
MATRIX = {
    "model": ["random:tiny-llama"],
    "backend": ["numpy"],
    "devices": [1],
    "context": [8, 16],
    "tokens": [8],
    "sampling": [{}],
}


def result(
    *,
    tok_s: float = 100.0,
    day: int = 0,
    model: str = "test-model",
    backend: str = "numpy",
    context: int = 16,
    sampling: SamplingParams | None = None,
    **changes: Any,
) -> Result:
    """A measurement of nothing, `day` days after DAY."""
    made = Result(
        created=(DAY + timedelta(days=day)).isoformat(),
        git_sha="0123456789abcdef0123456789abcdef01234567",
        model=MeasuredModel(model, 1_000_000, BytesPerToken(2_000_000, 10_000)),
        backend=backend,
        devices=(MeasuredDevice("test device", 0.0, 2_010_000 * tok_s / 0.4 / 1e9),),
        settings=Settings(context, 32, 5, sampling=sampling or SamplingParams()),
        decode=DecodeSpeed(
            tok_s,
            (tok_s * 0.98, tok_s * 1.01),
            tuple(tok_s * f for f in (0.98, 1.0, 1.01, 0.995, 1.004)),
        ),
        itl_us=InterTokenLatency(1e6 / tok_s, 1.1e6 / tok_s, None, 155),
        prefill=PrefillSpeed(1500.0, context),
        ttft_ms=FirstToken(12.5, 5),
        mbu=Mbu(None, 0.4),
        phases_us={
            "qkv": PhaseTime(0.25e6 / tok_s, 0.02e6 / tok_s),
            "attention": PhaseTime(0.2e6 / tok_s, 0.03e6 / tok_s, 0.04e6 / tok_s),
            "gate_up": PhaseTime(0.4e6 / tok_s),
        },
        verified=Verified("a reference that only this test knows", True, 1e-5),
        environment={"python": "3.11", "cpu": {"name": "test cpu", "cores": 2}, "gpus": []},
    )
    return _consistent(replace(made, **changes), changes)


def _consistent(made: Result, changes: dict[str, Any]) -> Result:
    """What follows from what a test changed, unless it changed that as well: a document must add up."""
    follows: dict[str, Any] = {}
    if raw := changes.get("samples"):
        gaps = [gap for repeat in raw.itl_us for gap in repeat]
        if raw.ttft_ms:
            follows["ttft_ms"] = replace(made.ttft_ms, p50=median(raw.ttft_ms))
        if raw.prefill_tok_s:
            follows["prefill"] = replace(made.prefill, tok_s=median(raw.prefill_tok_s))
        if gaps:
            follows["itl_us"] = replace(made.itl_us, p50=median(gaps))
    needed_gbs = made.model.bytes_per_token.of_step(made.settings.streams) * made.decode.median / 1e9
    if {"devices", "model", "decode", "settings"} & set(changes) and made.devices:
        datasheet, measured = ([getattr(d, name) for d in made.devices] for name in GBS)
        follows["mbu"] = Mbu(*(needed_gbs / sum(gbs) if all(gbs) else None for gbs in (datasheet, measured)))
    elif mbu := changes.get("mbu"):
        known = [needed_gbs / share if share else 0.0 for share in (mbu.datasheet, mbu.measured)]
        follows["devices"] = tuple(MeasuredDevice(device.name, *known) for device in made.devices)
    return replace(made, **{name: value for name, value in follows.items() if name not in changes})


def document(**kwargs: Any) -> dict[str, Any]:
    """The same as a worker sends it and a file holds it."""
    found: dict[str, Any] = json.loads(json.dumps(result(**kwargs).to_dict()))
    return found


def stored(**kwargs: Any) -> Measurement:
    """The same as a row."""
    return record_measurement(document=document(**kwargs), source="test.json")[0]


def sweep(name: str = "test-sweep", **matrix: Any) -> Sweep:
    return Sweep.objects.create(name=name, matrix={**MATRIX, **matrix}, repeats=5)


def run_of(of: Sweep, **kwargs: Any) -> SweepRun:
    """A queued run."""
    return services.start_sweep(sweep=of, trigger=Trigger.SHELL, **kwargs)

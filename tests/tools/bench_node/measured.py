"""Measurements as a node would leave them, made up."""

from __future__ import annotations

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
    Settings,
    Verified,
)
from engine.timings import PhaseTime


def measured(
    model: str = "laneformer-2b",
    devices: int = 4,
    tok_s: float = 3000.0,
    *,
    context: int = 256,
    device: str = "NVIDIA H200",
    wait_peer: float = 0.0,
) -> Measurement:
    """Each device reads 4 TB/s and a token 4 GB, so that the floor is 1,000 tok/s a device."""
    return Measurement(
        created="2026-11-21T10:00:00+00:00",
        git_sha="1234567",
        model=MeasuredModel(model, 2_320_069_632, BytesPerToken(4_000_000_000, 0)),
        backend="cuda",
        devices=(MeasuredDevice(device, 4800.0, 4000.0),) * devices,
        settings=Settings(context, 1000, 5, devices, "dtp", 2, 1 if model.endswith("plain") else 8),
        decode=DecodeSpeed(tok_s, (tok_s - 5, tok_s + 5), (tok_s - 5, tok_s, tok_s + 5)),
        itl_us=InterTokenLatency(1e6 / tok_s, None, None, 999),
        prefill=PrefillSpeed(20_000.0, context),
        ttft_ms=FirstToken(7.0, 5),
        mbu=Mbu(0.6, 0.7),
        phases_us={"qkv": PhaseTime(40.0, 20.0), "down": PhaseTime(40.0, 0.0, wait_peer)},
        verified=Verified("own full-sequence pass", True, None),
    )

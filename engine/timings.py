"""What a launch says of its time: the phases of a token, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]
PHASES = ("embed", "qkv", "attention", "attn_out", "gate_up", "down", "head", "sample")
"""The phases of a token, in order; every profile uses these names."""


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Mean microseconds a decode token spends in a phase, by what it was doing."""

    work: float
    wait_local: float = 0.0
    wait_peer: float = 0.0

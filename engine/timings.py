"""What a launch says of its time: the phases of a token, and how it ended."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "cancelled"]
PHASES = ("embed", "qkv", "attention", "attn_out", "gate_up", "down", "head", "sample")
"""The phases of a token, in order; every profile uses these names."""
EXPERT_PHASES = (*PHASES[:4], "router", "experts", *PHASES[6:])
"""Those of a mixture of experts: who is chosen, and what the chosen ones add."""
EVERY_PHASE = (*PHASES[:4], "router", *PHASES[4:6], "experts", *PHASES[6:])
"""The same with those that only a mixture of experts has."""


def phases_of(has_experts: bool) -> tuple[str, ...]:
    """Those of a model with experts in place of MLPs, or of one without."""
    return EXPERT_PHASES if has_experts else PHASES


def in_order(names: Iterable[str]) -> list[str]:
    """Phases in their order within a token, each once; what is no known phase stands last."""
    found = list(dict.fromkeys(names))
    known = [name for name in EVERY_PHASE if name in found]
    return known + [name for name in found if name not in EVERY_PHASE]


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """Mean microseconds a decode token spends in a phase, by what it was doing."""

    work: float
    wait_local: float = 0.0
    wait_peer: float = 0.0


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a request went, in milliseconds.

    `ttft_ms` runs from the request's creation to its first token, by the worker's clock, the queue
    included. `decode_tok_s` is `decode_speed`, of an interrupted generation without the pause.
    """

    queue_ms: float
    prefill_ms: float
    ttft_ms: float
    decode_ms: float
    decode_tok_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Of the prompt's tokens: those whose keys and values were kept from an earlier request."""
    tokenize_ms: float = 0.0
    publish_ms: float = 0.0
    """From the first token to Redis having it; 0 if the generation ended before."""


NEVER_BEGAN = Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0, 0)
"""Of a request that was cancelled before a worker took it."""


def decode_speed(gaps: int, elapsed_ns: float) -> float:
    """Tokens a second over the `gaps` between n tokens, (n - 1) / (t_last - t_first); 0 if no time passed.

    The first token belongs to the prefill, which is why the gaps count and not the tokens.
    """
    return gaps * 1e9 / elapsed_ns if elapsed_ns > 0 else 0.0

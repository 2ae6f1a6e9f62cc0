"""A backend that plays a script of tokens and stamps, for what costs time or cannot be provoked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import (
    DeviceInfo,
    Job,
    OnStep,
    Outcome,
    Token,
    Topology,
    TraceSpan,
    ignore_step,
)
from engine.backends.prefix_cache import PrefixCacheUse
from engine.models.catalogue import Model, open_model
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.timings import FinishReason, PhaseTime

GAP_NS = 250_000
"""The default pace: 4,000 tokens a second."""


def tiny_model() -> Model:
    return open_model("random:tiny-llama")


def steady(job: Job) -> list[Token]:
    """One token every GAP_NS, the first after a millisecond; ids count up from 0."""
    return [Token(i, 1_000_000 + i * GAP_NS) for i in range(job.max_tokens)]


@dataclass
class ScriptedLaunch:
    tokens: list[Token]
    result: Outcome
    endless: bool = False
    stopped: bool = False
    closed: bool = False

    @property
    def prefilled(self) -> int:
        return self.result.prefill_tokens

    @property
    def outcome(self) -> Outcome | None:
        return None if self.endless and not self.stopped else self.result

    def poll(self, timeout: float) -> Sequence[Token]:
        fresh, self.tokens = self.tokens[:3], self.tokens[3:]
        return fresh

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


@dataclass
class ScriptedBackend:
    config: ModelConfig
    script: Callable[[Job], list[Token]] = steady
    name: str = "cuda"
    rows: int = 1
    topology: Topology = field(default_factory=lambda: Topology((DeviceInfo("NVIDIA H200"),)))
    bandwidths: list[tuple[float, ...]] = field(default_factory=lambda: [(4000.0,), (4400.0,)])
    finish: FinishReason = "length"
    endless: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    jobs: list[Job] = field(default_factory=list)
    launches: list[ScriptedLaunch] = field(default_factory=list)
    prefix_cache: PrefixCacheUse = field(default_factory=PrefixCacheUse)

    def storage(self, name: str) -> Storage | None:
        return None if self.name == "numpy" else Storage.F16

    def state(self) -> dict[str, Any]:
        return {}

    def launch(self, job: Job) -> ScriptedLaunch:
        self.jobs.append(job)
        outcome = Outcome(
            self.finish,
            prefill_tokens=len(job.tokens),
            prefill_ns=1_000_000,
            phases_us={"qkv": PhaseTime(40.0, 2.0)} if job.profile else {},
            trace=(TraceSpan("qkv 0", 0, 0, 0.0, 1.0),) if job.trace else (),
        )
        launch = ScriptedLaunch(self.script(job), outcome, self.endless)
        self.launches.append(launch)
        return launch

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        on_step()
        return np.zeros((len(tokens) - scored_from, self.config.vocab), np.float32)

    def measure_bandwidth(self) -> tuple[float, ...]:
        return self.bandwidths.pop(0)

    def close(self) -> None:
        for launch in self.launches:
            launch.close()

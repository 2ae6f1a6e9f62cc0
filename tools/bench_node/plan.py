"""What a node is asked: which models, on how many devices, at which contexts, and what comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.backends.base import TraceRange
from engine.bench import Point
from engine.config import ModelConfig
from engine.models import Model
from engine.presets import load_preset
from engine.probe import plain
from engine.weights import RandomWeights

DEVICES = (1, 2, 4, 8)
DELAYS = (0, 1, 2)
_TRACED = TraceRange(8, 11)
"""Three tokens, once the launch has found its pace."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: `tokens` new ones after each of `contexts`, `repeats` times."""

    model: str
    contexts: tuple[int, ...]
    tokens: int
    repeats: int


FULL = Scale("laneformer-2b", (256, 4000), 1000, 5)
QUICK = Scale("laneformer-2b", (256,), 128, 3)
DRY = Scale("tiny-laneformer", (32, 96), 24, 5)
"""For devices that are virtual: everything but the figures is as it will be on a node."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A model on so many devices: what is opened once and measured at several contexts."""

    config: ModelConfig
    devices: int

    @property
    def name(self) -> str:
        return f"{self.config.name} x{self.devices}"

    @property
    def model(self) -> Model:
        """With random weights, which each device makes in its own memory."""
        return Model(self.config, RandomWeights(self.config, 0), None, "random", "random:0")


@dataclass(frozen=True, slots=True)
class Order:
    """One run: `devices` in rising order; `limit_s` seconds after which no further point is begun."""

    backend: str
    scale: Scale
    devices: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 450.0
    commit: str = ""

    @property
    def base(self) -> ModelConfig:
        return load_preset(self.scale.model).config

    @property
    def most(self) -> int:
        return self.devices[-1]

    def setups(self) -> tuple[Setup, ...]:
        """The model as it is, its shape without lanes, and other delays where there are most devices."""
        whole = [Setup(self.base, count) for count in self.devices]
        slices = [Setup(plain(self.base), count) for count in self.devices]
        late = [Setup(config, self.most) for config in other_delays(self.base)]
        return (*whole, *slices, *(late if self.most > 1 else ()))

    def points(self) -> Iterator[tuple[Setup, Point]]:
        """What says most comes first, as a run may be cut off: most devices, the shorter context."""
        by_worth = sorted(self.setups(), key=lambda s: (s.config.name != self.base.name, -s.devices))
        for i, context in enumerate(self.scale.contexts):
            for setup in by_worth:
                if i == 0 or setup.config.name in (self.base.name, plain(self.base).name):
                    traced = i == 0 and setup.devices == self.most and setup.config.name == self.base.name
                    yield setup, self._point(context, traced)

    def _point(self, context: int, traced: bool) -> Point:
        """As many tokens as the model's context leaves room for."""
        tokens = min(self.scale.tokens, self.base.context - context)
        return Point(context, tokens, self.scale.repeats, trace=_TRACED if traced else None)


def other_delays(base: ModelConfig) -> Iterator[ModelConfig]:
    """The model with its lanes further or less behind each other than it was made for."""
    for delay in DELAYS:
        if delay != base.lanes.delay:
            yield replace(base, name=f"{base.name}-delay{delay}", lanes=replace(base.lanes, delay=delay))

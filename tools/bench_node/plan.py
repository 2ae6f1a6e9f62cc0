"""What a node is asked: which models, on how many devices, at which contexts, and what comes first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from engine.backends.base import TraceRange
from engine.measuring.point import Point
from engine.models.catalogue import Model
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.probe import SMALL, plain
from engine.models.weights import RandomWeights
from engine.sampling import PLAYGROUND

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
    """One run: `devices` in rising order; after `limit_s` seconds no model, check, exchange, point begins."""

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

    @property
    def kinds(self) -> tuple[ModelConfig, ...]:
        """By worth, as a run may be cut off: the model as it is, its shape without lanes, other delays."""
        return self.base, plain(self.base), *(other_delays(self.base) if self.most > 1 else ())

    def setups(self) -> tuple[Setup, ...]:
        """Every kind on every number of devices, the most devices first."""
        return tuple(setup for kind in self.kinds for setup in self.setups_of(kind))

    def setups_of(self, kind: ModelConfig) -> tuple[Setup, ...]:
        return tuple(Setup(kind, count) for count in reversed(self.devices))

    def small_setups(self) -> tuple[Setup, ...]:
        """A small model of every kind on every number of devices: what the FP32 reference can follow."""
        delays = other_delays(SMALL) if self.most > 1 else ()
        return tuple(Setup(kind, n) for kind in (SMALL, plain(SMALL), *delays) for n in self.devices)

    def twin(self, kind: ModelConfig) -> str:
        """The name of the small model of a kind."""
        return kind.name.replace(self.base.name, SMALL.name)

    def first_points(self, kind: ModelConfig) -> Iterator[tuple[Setup, Point]]:
        """A kind at the shortest context, greedily; the base is traced on the most devices.

        The model and its shape without lanes then once more, as the playground draws.
        """
        for setup in self.setups_of(kind):
            traced = kind.name == self.base.name and setup.devices == self.most
            yield setup, self._point(self.scale.contexts[0], traced)
        if kind.name in (self.base.name, plain(self.base).name):
            for setup in self.setups_of(kind):
                yield setup, replace(self._point(self.scale.contexts[0], False), sampling=PLAYGROUND)

    def further_points(self) -> Iterator[tuple[Setup, Point]]:
        """The longer contexts, of the model and of its shape without lanes."""
        for context in self.scale.contexts[1:]:
            for kind in (self.base, plain(self.base)):
                for setup in self.setups_of(kind):
                    yield setup, self._point(context, False)

    def _point(self, context: int, traced: bool) -> Point:
        """As many tokens as the model's context leaves room for."""
        tokens = min(self.scale.tokens, self.base.context - context)
        return Point(context, tokens, self.scale.repeats, trace=_TRACED if traced else None)


def other_delays(base: ModelConfig) -> Iterator[ModelConfig]:
    """The model with its lanes further or less behind each other than it was made for."""
    for delay in DELAYS:
        if delay != base.lanes.delay:
            yield replace(base, name=f"{base.name}-delay{delay}", lanes=replace(base.lanes, delay=delay))

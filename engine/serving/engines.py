"""The one model that a worker holds, and changing it for a benchmark of another."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.running import complete
from engine.errors import BackendUnavailable
from engine.models.catalogue import Model, open_model
from engine.progress import Progress
from engine.sampling import PLAYGROUND, SamplingParams

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """What to open: a model by name or path, on a backend, on so many devices."""

    model: str
    backend: str = "auto"
    devices: int = 1
    options: Mapping[str, Any] = field(default_factory=dict)
    fewer: bool = False
    """Whether fewer devices will do where so many cannot be had."""
    rows: int = 1
    """How many requests at once; a backend that has fewer says so."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model, ready to launch."""

    spec: EngineSpec
    model: Model
    backend: Backend

    @property
    def name(self) -> str:
        return self.model.config.name

    def answers_to(self, model: str) -> bool:
        """Whether a request for `model` can be served; an empty one takes any."""
        return model in ("", self.name, self.spec.model)

    def serves(self, spec: EngineSpec) -> bool:
        """Whether this is what `spec` asks for."""
        return (
            self.answers_to(spec.model)
            and spec.backend in (self.spec.backend, self.backend.name)
            and (spec == self.spec or spec.devices == len(self.backend.topology.devices))
            and spec.options == self.spec.options
        )


def open_engine(spec: EngineSpec) -> Engine:
    """Opens and warms up. Raises CheckpointError, TokenizerError or BackendUnavailable."""
    if spec.backend == "paced":
        from engine.backends import paced
        from engine.backends.paced_models import built_in

        model = built_in(spec.model) or open_model(spec.model)
        options = {**spec.options, "rows": spec.rows} if spec.rows > 1 else spec.options
        return Engine(spec, model, paced.open(model, devices=spec.devices, options=options))
    model = open_model(spec.model)
    backend = _open_backend(spec, model)
    engine = Engine(spec, model, backend)
    try:
        warm_up(engine)
    except BaseException:
        backend.close()
        raise
    return engine


def _open_backend(spec: EngineSpec, model: Model) -> Backend:
    """On spec.devices, or, if it allows that, on the most below that can be had."""
    for count in range(spec.devices, 0, -1):
        try:
            return open_backend(
                spec.backend,
                model,
                devices=count,
                options=spec.options,
                rows=spec.rows,
                progress=LoadLog(model.config.name),
            )
        except BackendUnavailable as error:
            if not spec.fewer or count == 1:
                raise
            log.warning("%s does not run on %d devices: %s", model.config.name, count, error)
    raise BackendUnavailable(f"devices is {spec.devices}; it must be at least 1")


class LoadLog:
    """An OnProgress that writes a line every EVERY_S seconds, and one when something else begins."""

    EVERY_S = 5.0

    def __init__(self, name: str) -> None:
        self._name = name
        self._what = ""
        self._said_at = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.what == self._what and now - self._said_at < self.EVERY_S:
            return
        self._what, self._said_at = progress.what, now
        log.info("%s: %s, %s", self._name, progress.what, progress)


def warm_up(engine: Engine) -> None:
    """Runs a few tokens, so that the first user does not wait for page faults, compilers and clocks.

    Greedily and as the playground draws: a backend may have a kernel for each.
    """
    bos = engine.model.config.bos_id or 0
    for sampling in (SamplingParams(), PLAYGROUND):
        complete(engine.backend, Job(tokens=(bos,), max_tokens=2, sampling=sampling))


Opener = Callable[[EngineSpec], Engine]


class EngineSlot:
    """Holds at most one engine at a time, because two may not fit in the devices' memory."""

    def __init__(self, opener: Opener = open_engine) -> None:
        self._open = opener
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine | None:
        return self._engine

    def hold(self, spec: EngineSpec) -> Engine:
        """The engine of `spec`; whatever else was held is closed first. Raises what opening raises."""
        if self._engine is not None and self._engine.serves(spec):
            return self._engine
        self.close()
        self._engine = self._open(spec)
        return self._engine

    def close(self) -> None:
        if self._engine is not None:
            engine, self._engine = self._engine, None
            engine.backend.close()

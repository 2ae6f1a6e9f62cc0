"""What a worker opens: a model on a backend, ready to launch."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.running import complete
from engine.errors import BackendUnavailable
from engine.models.catalogue import Model, name_of, open_model
from engine.progress import OnProgress, Progress
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

    @property
    def name(self) -> str:
        """Of the model, as the engine will say it."""
        return name_of(self.model)


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
            and spec.rows == self.spec.rows
        )


class Loading(Protocol):
    """What an engine is opened for, as far as whoever opens it is concerned."""

    def progress(self, progress: Progress) -> None: ...

    def turn(self) -> AbstractContextManager[None]:
        """Held while something is launched: no other engine's request runs meanwhile."""
        ...


class LoadingAlone:
    """There is no other engine."""

    def progress(self, progress: Progress) -> None: ...

    @contextmanager
    def turn(self) -> Iterator[None]:
        yield


Opener = Callable[[EngineSpec, Loading], Engine]


def open_model_of(spec: EngineSpec) -> Model:
    """Its shape, words and mapped files. Raises CheckpointError or TokenizerError."""
    if spec.backend == "paced":
        from engine.backends.paced_models import built_in

        return built_in(spec.model) or open_model(spec.model)
    return open_model(spec.model)


def open_engine(spec: EngineSpec, loading: Loading | None = None) -> Engine:
    """Opens and warms up. Raises CheckpointError, TokenizerError or BackendUnavailable."""
    loading = loading or LoadingAlone()
    model = open_model_of(spec)
    if spec.backend == "paced":
        from engine.backends import paced

        options = {**spec.options, "rows": spec.rows} if spec.rows > 1 else spec.options
        return Engine(spec, model, paced.open(model, devices=spec.devices, options=options))
    backend = _open_backend(spec, model, loading.progress)
    engine = Engine(spec, model, backend)
    try:
        with loading.turn():
            warm_up(engine)
    except BaseException:
        backend.close()
        raise
    return engine


def _open_backend(spec: EngineSpec, model: Model, progress: OnProgress) -> Backend:
    """On spec.devices, or, if it allows that, on the most below that can be had."""
    for count in range(spec.devices, 0, -1):
        try:
            return open_backend(
                spec.backend,
                model,
                devices=count,
                options=spec.options,
                rows=spec.rows,
                progress=progress,
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

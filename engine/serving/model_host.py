"""A worker's models: opened when they are asked for, with what is pinned and remembered of each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from engine.errors import EngineError
from engine.models.prompt import Prompt
from engine.serving.engine_pool import EnginePool, Wait
from engine.serving.engines import Engine, EngineSpec, Loading, Opener
from engine.serving.messages import ServedModel
from engine.serving.pinning import pin
from engine.serving.remembered import Remembered
from engine.serving.served_models import ServedModels
from engine.serving.tokenizer_service import TokenizerService

log = logging.getLogger(__name__)


class HomeLost(EngineError):
    """None of the worker's models can be opened (again); the process has to be started afresh."""


class ModelHost:
    """Opens `specs` in a pool of at most `budget` bytes of weights (EnginePool).

    Each has `pinned` prompts read when it is opened, and those kept under `remember_in` by the worker of this
    name; the words of all are told to `tokenizer_service`. Raises ConfigError if two models have one name.
    """

    def __init__(
        self,
        worker: str,
        specs: Sequence[EngineSpec],
        opener: Opener,
        tokenizer_service: TokenizerService,
        *,
        budget: int | None = None,
        pinned: Sequence[Prompt] = (),
        remember_in: Path | None = None,
        on_change: Callable[[], None],
    ) -> None:
        self._worker = worker
        self._served = ServedModels(specs)
        self._opener = opener
        self._tokenizer_service = tokenizer_service
        self._pinned = tuple(pinned)
        self._remember_in = remember_in
        self._remembered: dict[str, Remembered] = {}
        self._opened: set[str] = set()
        """Names of models that have been open in this process."""
        self.pool = EnginePool(
            self._open,
            specs,
            lambda spec: self._served.look_at(spec).weight_bytes,
            budget=budget,
            on_change=on_change,
            on_close=self._remember_one,
        )

    @property
    def specs(self) -> tuple[EngineSpec, ...]:
        return self._served.specs

    @property
    def names(self) -> list[str]:
        return self._served.names

    @property
    def newest(self) -> Engine | None:
        """The one that was used last of the worker's own models that are loaded."""
        return next((e for e in reversed(self.pool.engines) if self.spec_of(e) is not None), None)

    def spec_of(self, engine: Engine) -> EngineSpec | None:
        return next((spec for spec in self.specs if engine.serves(spec)), None)

    def find(self, model: str) -> EngineSpec | None:
        """The model of that name; where it is empty the one that was used last, or else the first."""
        if model:
            return self._served.find(model)
        newest = self.newest
        return (self.spec_of(newest) if newest else None) or self.specs[0]

    def tell(self) -> tuple[ServedModel, ...]:
        return self._served.tell(self.pool)

    def open_one(self, wait: Wait) -> Engine | None:
        """Opens the first of the models that can be; None if `wait` said no. Raises HomeLost if none can."""
        failures = []
        for spec in self.specs:
            try:
                with self.pool.lease(spec, wait) as engine:
                    return engine
            except EngineError as error:
                failures.append(error)
                log.error("%s cannot be opened: %s", spec.name, error)
        raise HomeLost(f"the worker {self._worker} cannot open its model: {failures[0]}") from failures[0]

    def failure(self, spec: EngineSpec, error: EngineError) -> EngineError:
        """What it means that `spec` cannot be loaded: a fault of that model, or of this process.

        Of the process only if it could be loaded before, and no other model is.
        """
        if self.newest is not None or (len(self.specs) > 1 and spec.name not in self._opened):
            return error
        return HomeLost(f"the worker {self._worker} cannot open its model: {error}")

    def look_at_all(self) -> None:
        """Learns what models can do that are not loaded yet."""
        for spec in self.specs:
            try:
                facts = self._served.look_at(spec)
            except EngineError as error:
                self._served.note_failure(spec, error)
                log.error("%s cannot be opened: %s", spec.name, error)
                continue
            self._tokenizer_service.open(spec.name, facts.tokenizer, facts.context)

    def remember(self) -> None:
        """While nobody waits: has backends take back what launches left, and writes down what is kept."""
        for engine in self.pool.engines:
            engine.backend.settle()
            self._remember_one(engine)

    def close(self) -> None:
        self.pool.close()

    def _open(self, spec: EngineSpec, loading: Loading) -> Engine:
        try:
            engine = self._opener(spec, loading)
        except Exception as error:
            self._served.note_failure(spec, error)
            raise
        if spec in self.specs:
            with loading.turn():
                pin(engine, self._pinned)
                self._restore(engine)
            self._served.note_opened(spec, engine)
            self._opened.add(spec.name)
            self._tokenizer_service.open(engine.name, engine.model.tokenizer, engine.backend.config.context)
            backend = engine.backend
            together = "" if backend.rows == 1 else f", {backend.rows} requests at once"
            log.info("%s serves %s on %s%s", self._worker, engine.name, backend.name, together)
            if backend.rows < spec.rows:
                few = "%s was to take %d requests at once; on %s it takes %d"
                log.warning(few, engine.name, spec.rows, backend.name, backend.rows)
        return engine

    def _restore(self, engine: Engine) -> None:
        if self._remember_in is not None:
            remembered = Remembered(self._remember_in, self._worker, engine.model.digest)
            self._remembered[engine.name] = remembered
            if count := remembered.restore(engine.backend):
                log.info("went through %d kept prompts again", count)

    def _remember_one(self, engine: Engine) -> None:
        if engine.name in self._remembered and self.spec_of(engine) is not None:
            self._remembered[engine.name].save(engine.backend)

"""The models that a worker was given: what each can do, and whether it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from engine.errors import ConfigError, EngineError
from engine.measuring.roofline import weight_bytes
from engine.models.tokenizer import Tokenizer
from engine.models.weights import storage_of
from engine.serving.engine_pool import EnginePool
from engine.serving.engines import Engine, EngineSpec, open_model_of
from engine.serving.messages import ServedModel


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model once its files were looked at."""

    context: int
    tokenizer: Tokenizer | None
    weight_bytes: int

    @classmethod
    def of_engine(cls, engine: Engine) -> Facts:
        config = engine.backend.config
        return cls(config.context, engine.model.tokenizer, weight_bytes(config, engine.backend.storage))


class ServedModels:
    """By name. Raises ConfigError if two have the same."""

    def __init__(self, specs: Sequence[EngineSpec]) -> None:
        self.specs = tuple(specs)
        names = [spec.name for spec in specs]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(
                f"two of the worker's models are called {twice!r}: requests could not tell them"
            )
        self._by_name = {called: spec for spec in reversed(specs) for called in (spec.name, spec.model)}
        self._facts: dict[str, Facts] = {}
        self._errors: dict[str, str] = {}

    @property
    def names(self) -> list[str]:
        return [spec.name for spec in self.specs]

    def find(self, model: str) -> EngineSpec | None:
        """The one that is called so, by its name or by what the worker was given."""
        return self._by_name.get(model)

    def look_at(self, spec: EngineSpec) -> Facts:
        """Reads the header and the words of a model, once. Raises what opening it would."""
        known = self._facts.get(spec.name)
        if known is None:
            model = open_model_of(spec)
            kept = weight_bytes(model.config, partial(storage_of, model.weights))
            known = self._facts[spec.name] = Facts(model.config.context, model.tokenizer, kept)
        return known

    def note_opened(self, spec: EngineSpec, engine: Engine) -> None:
        self._facts[spec.name] = Facts.of_engine(engine)
        self._errors.pop(spec.name, None)

    def note_failure(self, spec: EngineSpec, error: BaseException) -> None:
        if isinstance(error, EngineError):
            self._errors[spec.name] = str(error)

    def tell(self, pool: EnginePool) -> tuple[ServedModel, ...]:
        """As the heartbeat says it."""
        return tuple(self._tell_one(spec, pool) for spec in self.specs)

    def _tell_one(self, spec: EngineSpec, pool: EnginePool) -> ServedModel:
        name, facts, progress = spec.name, self._facts.get(spec.name), pool.progress_of(spec)
        error = self._errors.get(name, "")
        words = facts.tokenizer if facts else None
        return ServedModel(
            name,
            "loading" if progress else "loaded" if pool.loaded(spec) else "failed" if error else "unloaded",
            facts.context if facts else 0,
            words is not None and words.chat_template is not None,
            words is not None and words.infill is not None,
            progress or error,
        )


def portrait(engine: Engine) -> dict[str, Any]:
    """What the heartbeat says of the engine that was used last."""
    tokenizer, topology = engine.model.tokenizer, engine.backend.topology
    return {
        "model": engine.name,
        "backend": engine.backend.name,
        "devices": tuple(device.name for device in topology.devices),
        "context": engine.backend.config.context,
        "rows": engine.backend.rows,
        "chat": tokenizer is not None and tokenizer.chat_template is not None,
        "infill": tokenizer is not None and tokenizer.infill is not None,
        "parallelism": topology.parallelism,
        "lanes": topology.lanes,
        "sync": str(engine.backend.facts.get("sync", "")),
        "link": topology.link,
    }

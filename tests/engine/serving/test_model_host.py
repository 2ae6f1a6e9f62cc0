"""What a worker does about its models while nobody waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.model_host import ModelHost
from engine.serving.tokenizer_service import TokenizerService


class Asked:
    """A backend, and how often it was told to settle."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.times = 0

    def settle(self) -> None:
        self.times += 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


def test_a_backend_takes_back_what_a_launch_has_left_while_nobody_waits(redis_url: str) -> None:
    asked: list[Asked] = []

    def opened(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        asked.append(Asked(engine.backend))
        return replace(engine, backend=asked[-1])  # type: ignore[arg-type]

    specs = [EngineSpec("random:tiny-llama", "numpy")]
    host = ModelHost("w", specs, opened, TokenizerService(redis_url), on_change=lambda: None)
    assert host.open_one(lambda _why: True) is not None
    [backend] = asked
    host.remember()
    assert backend.times == 1
    host.close()

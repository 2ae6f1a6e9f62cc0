"""Opening what a worker serves: on so many devices, or, only if that was asked for, on what is left."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from engine.backends import open_backend
from engine.errors import BackendUnavailable
from engine.progress import Progress
from engine.serving import engines
from engine.serving.engines import Engine, EngineSpec, LoadLog, open_engine

MODEL = "random:tiny-laneformer"


@pytest.fixture
def three_devices_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of four devices, one of which does not answer any more."""

    def opened(name, model, *, devices, **rest):
        if devices > 3:
            raise BackendUnavailable(f"{devices} GPUs were asked for; 3 of 4 answer")
        return open_backend(name, model, devices=devices, **rest)

    monkeypatch.setattr(engines, "open_backend", opened)


@pytest.fixture
def on_fewer(three_devices_left: None) -> Iterator[Engine]:
    engine = open_engine(EngineSpec(MODEL, "cpu", 4, {"threads": 1}, fewer=True))
    yield engine
    engine.backend.close()


@pytest.mark.usefixtures("three_devices_left")
def test_devices_that_are_gone_are_an_error_unless_fewer_will_do() -> None:
    with pytest.raises(BackendUnavailable, match="3 of 4 answer"):
        open_engine(EngineSpec(MODEL, "cpu", 4, {"threads": 1}))


def test_where_fewer_will_do_it_takes_the_most_that_the_model_falls_into(on_fewer: Engine) -> None:
    assert len(on_fewer.backend.topology.devices) == 2, "8 lanes do not fall into 3 parts"


def test_what_runs_on_fewer_devices_is_still_what_its_worker_asked_for(on_fewer: Engine) -> None:
    assert on_fewer.serves(on_fewer.spec)


def test_a_benchmark_for_more_devices_does_not_take_what_runs_on_fewer(on_fewer: Engine) -> None:
    assert not on_fewer.serves(EngineSpec(MODEL, "cpu", 4, {"threads": 1}, fewer=False))
    assert on_fewer.serves(EngineSpec(MODEL, "cpu", 2, {"threads": 1}))


def test_what_was_opened_with_other_options_is_not_what_is_asked_for(on_fewer: Engine) -> None:
    assert not on_fewer.serves(EngineSpec(MODEL, "cpu", 2))
    assert not on_fewer.serves(EngineSpec(MODEL, "cpu", 2, {"threads": 1, "sync": "barrier"}))


def test_loading_is_told_when_something_else_begins_and_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(engines.time, "monotonic", lambda: now[0])
    caplog.set_level(logging.INFO)
    told = LoadLog("m")
    for step in range(12):
        told(Progress(step, 12, "layers", "packing weights"))
        now[0] += 1.0
    told(Progress(0, 1, "kernel", "compiling"))
    assert [record.getMessage() for record in caplog.records] == [
        "m: packing weights, 0 of 12 layers",
        "m: packing weights, 5 of 12 layers",
        "m: packing weights, 10 of 12 layers",
        "m: compiling, 0 of 1 kernel",
    ]

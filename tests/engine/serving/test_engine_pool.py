"""What stays loaded, what makes room, and who waits for whom."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from engine.errors import BackendFailure, CheckpointError, DoesNotFit
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.serving.engine_pool import RETRY_S, EnginePool
from engine.serving.engines import Engine, EngineSpec, Loading
from tests.waiting import PATIENCE_S, wait_until

SIZE = 1000
CONFIG = load_preset("tiny-llama").config


class Backend:
    """Holds no memory, but says when it is closed."""

    rows = 1

    def __init__(self, name: str = "numpy", rows: int = 1) -> None:
        self.name, self.rows, self.closed = name, rows, False
        self.may_close = _OPEN

    def storage(self, _name: str) -> Storage:
        return Storage.F16

    def close(self) -> None:
        self.may_close.wait(PATIENCE_S)
        self.closed = True


_OPEN = threading.Event()
_OPEN.set()


class Machine:
    """Opens engines; a model's loading can be held up, or fail."""

    def __init__(self, backend: str = "numpy", rows: int = 1, memory: int = 100) -> None:
        self.backend, self.rows, self.memory = backend, rows, memory
        self.opened: list[str] = []
        self.backends: dict[str, Backend] = {}
        self.gates: dict[str, threading.Event] = {}
        self.errors: dict[str, Exception] = {}

    def open(self, spec: EngineSpec, loading: Loading) -> Engine:
        self.opened.append(spec.model)
        self.gates.get(spec.model, _OPEN).wait(PATIENCE_S)
        if spec.model in self.errors:
            raise self.errors[spec.model]
        if sum(not one.closed for one in self.backends.values()) >= self.memory:
            raise DoesNotFit("the device is full")
        with loading.turn():
            self.backends[spec.model] = Backend(self.backend, self.rows)
        config = replace(CONFIG, name=spec.model)
        model: Any = type("Model", (), {"config": config})()
        return Engine(spec, model, self.backends[spec.model])  # type: ignore[arg-type]


def specs(names: str) -> list[EngineSpec]:
    return [EngineSpec(name) for name in names]


def wait_on(_why: str) -> bool:
    return True


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def new_pool(machine: Machine) -> Iterator[Callable[..., EnginePool]]:
    pools = []

    def make(names: str = "abc", size: int = 2 * CONFIG.parameters, **more: Any) -> EnginePool:
        pools.append(EnginePool(machine.open, specs(names), lambda _spec: size, **more))
        return pools[-1]

    yield make
    for gate in machine.gates.values():
        gate.set()
    for pool in pools:
        pool.close()


def use(pool: EnginePool, names: str) -> None:
    for spec in specs(names):
        with pool.lease(spec, wait_on) as engine:
            assert engine is not None


def loaded(pool: EnginePool) -> str:
    return "".join(engine.name for engine in pool.engines)


ROOM_FOR_TWO = 5 * CONFIG.parameters
"""Bytes: an FP16 model takes two a parameter."""


@pytest.mark.parametrize(
    ("used", "kept", "opened"),
    [("aba", "ba", "ab"), ("abc", "bc", "abc"), ("abac", "ac", "abc"), ("abcab", "ab", "abcab")],
)
def test_the_least_recently_used_makes_room(
    machine: Machine, new_pool: Callable[..., EnginePool], used: str, kept: str, opened: str
) -> None:
    pool = new_pool(budget=ROOM_FOR_TWO)
    use(pool, used)
    assert loaded(pool) == kept
    assert "".join(machine.opened) == opened
    assert [machine.backends[name].closed for name in kept] == [False, False]


def test_the_first_model_is_opened_without_being_weighed(machine: Machine) -> None:
    def weigh(spec: EngineSpec) -> int:
        raise AssertionError(f"{spec.name} was looked at, as its opening does once more")

    pool = EnginePool(machine.open, specs("a"), weigh, budget=ROOM_FOR_TWO)
    use(pool, "a")
    pool.close()


def test_a_model_that_is_larger_than_the_budget_is_loaded_alone(
    new_pool: Callable[..., EnginePool],
) -> None:
    pool = new_pool(budget=1)
    use(pool, "ab")
    assert loaded(pool) == "b"


def test_where_the_device_itself_is_full_the_oldest_goes(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.memory = 2
    pool = new_pool(budget=None)
    use(pool, "abc")
    assert loaded(pool) == "bc"


def test_a_model_that_fits_nowhere_is_an_error_of_its_own(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    pool = new_pool()
    use(pool, "a")
    machine.errors["b"] = CheckpointError("b is damaged")
    with pytest.raises(CheckpointError, match="b is damaged"):
        use(pool, "b")
    assert loaded(pool) == "a"
    del machine.errors["b"]
    use(pool, "b")
    assert loaded(pool) == "ab"


def test_a_model_that_does_not_fit_even_alone_sends_nothing_away_twice(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    now = [0.0]
    pool = new_pool(budget=None, clock=lambda: now[0])
    machine.errors["c"] = DoesNotFit("c takes two devices")
    with pytest.raises(DoesNotFit):
        use(pool, "c")
    use(pool, "ab")
    for now[0] in (1.0, 10 * RETRY_S):
        with pytest.raises(DoesNotFit, match="c takes two devices"):
            use(pool, "c")
    assert loaded(pool) == "ab"
    assert "".join(machine.opened) == "cab"


def test_a_gpu_that_is_too_small_for_a_model_keeps_what_it_holds() -> None:
    machine = Machine("cuda")
    pool = EnginePool(machine.open, specs("abc"), lambda _spec: 0)
    use(pool, "ab")
    machine.errors["c"] = DoesNotFit("c takes two devices", even_alone=True)
    with pytest.raises(DoesNotFit, match="c takes two devices"):
        use(pool, "c")
    assert loaded(pool) == "ab"
    pool.close()


def test_a_model_for_which_no_gpu_is_large_enough_is_tried_once(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    pool = new_pool()
    machine.errors["a"] = DoesNotFit("a takes two devices", even_alone=True)
    for _ in range(2):
        with pytest.raises(DoesNotFit, match="a takes two devices"):
            use(pool, "a")
    assert machine.opened == ["a"]


def test_a_model_that_fails_to_load_leaves_nothing_in_memory() -> None:
    weights = []

    def fail(_spec: EngineSpec, _loading: Loading) -> Engine:
        loaded = Backend()
        weights.append(weakref.ref(loaded))
        try:
            raise KeyError("a tensor is missing")
        except KeyError as error:
            raise CheckpointError("a is damaged") from error

    pool = EnginePool(fail, specs("a"), lambda _spec: SIZE)
    gc.disable()  # as in a worker, where it looks seldom
    try:
        with pytest.raises(CheckpointError, match="a is damaged"):
            use(pool, "a")
        assert weights[0]() is None
    finally:
        gc.enable()
        pool.close()


def test_a_model_that_is_larger_than_all_memory_sends_nothing_away(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    pool = new_pool(size=1 << 60)
    use(pool, "a")
    with pytest.raises(DoesNotFit, match=r"b takes 1152921504\.6 GB of weights, and this process may take"):
        use(pool, "b")
    assert loaded(pool) == "a"
    assert machine.opened == ["a"]


def test_a_model_that_did_not_fit_is_tried_again_where_nothing_has_to_go_for_it(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    pool = new_pool()
    machine.errors["a"] = DoesNotFit("somebody else is on the device")
    with pytest.raises(DoesNotFit):
        use(pool, "a")
    del machine.errors["a"]
    use(pool, "a")
    assert loaded(pool) == "a"


def test_a_model_that_failed_sends_others_away_again_only_after_a_while(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    now = [0.0]
    pool = new_pool(budget=ROOM_FOR_TWO, clock=lambda: now[0])
    machine.errors["c"] = CheckpointError("c is damaged")
    use(pool, "ab")
    with pytest.raises(CheckpointError):
        use(pool, "c")
    use(pool, "ab")
    for now[0] in (1.0, RETRY_S - 1):
        with pytest.raises(CheckpointError, match="c is damaged"):
            use(pool, "c")
        assert loaded(pool) == "ab"
    assert "".join(machine.opened) == "abca"
    del machine.errors["c"]
    now[0] = RETRY_S
    use(pool, "c")
    assert loaded(pool) == "bc"


def test_what_is_not_its_own_is_alone_while_it_is_loaded(new_pool: Callable[..., EnginePool]) -> None:
    pool = new_pool("ab")
    use(pool, "ab")
    use(pool, "z")
    assert loaded(pool) == "z"
    use(pool, "a")
    assert loaded(pool) == "a"


def test_a_request_to_a_loaded_model_does_not_wait_for_a_load(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.gates["b"] = threading.Event()
    pool = new_pool()
    use(pool, "a")
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(use, pool, "b")
        wait_until(lambda: pool.is_loading)
        use(pool, "a")
        assert pool.progress_of(EngineSpec("b")) == "loading b"
        assert not waiting.done()
        machine.gates["b"].set()
        waiting.result(PATIENCE_S)
    assert loaded(pool) == "ab"


def test_what_is_in_use_makes_room_only_when_it_is_not_any_more(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    pool = new_pool(budget=1)
    said: list[str] = []
    with ThreadPoolExecutor(1) as threads:
        with pool.lease(EngineSpec("a"), wait_on):
            waiting = threads.submit(use, pool, "b")
            wait_until(lambda: pool.is_loading)
            assert machine.opened == ["a"]
            assert not machine.backends["a"].closed
            # One that came after it stands back, and is told why.
            with pool.lease(EngineSpec("a"), lambda why: said.append(why) or len(said) < 3) as engine:
                assert engine is None
        waiting.result(PATIENCE_S)
    assert machine.opened == ["a", "b"]
    assert said


def test_one_engine_at_a_time_has_the_devices(new_pool: Callable[..., EnginePool]) -> None:
    pool = new_pool()
    use(pool, "ab")
    said: list[str] = []
    with (
        pool.lease(EngineSpec("a"), wait_on),
        pool.lease(EngineSpec("b"), lambda why: bool(said.append(why))) as other,
    ):
        assert other is None
    assert said == ["waiting for a request to a to end"]


def test_rows_of_one_engine_run_together_and_the_oldest_waiting_is_next(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.rows = 2
    pool = new_pool()
    use(pool, "ab")
    order: list[str] = []

    def run(name: str) -> None:
        with pool.lease(EngineSpec(name), wait_on):
            order.append(name)

    with ThreadPoolExecutor(2) as threads:
        with pool.lease(EngineSpec("a"), wait_on), pool.lease(EngineSpec("a"), wait_on):
            first = threads.submit(run, "b")
            wait_until(lambda: len(pool._queue) == 1)
            second = threads.submit(run, "a")
            wait_until(lambda: len(pool._queue) == 2)
        first.result(PATIENCE_S)
        second.result(PATIENCE_S)
    assert order == ["b", "a"], "new requests to a would keep b out for ever"


def test_a_gpu_loads_between_requests(machine: Machine, new_pool: Callable[..., EnginePool]) -> None:
    machine.backend = "cuda"
    pool = new_pool()
    use(pool, "a")
    with ThreadPoolExecutor(1) as threads:
        with pool.lease(EngineSpec("a"), wait_on):
            waiting = threads.submit(use, pool, "b")
            wait_until(lambda: pool.is_loading)
            assert machine.opened == ["a"]
        waiting.result(PATIENCE_S)
    assert machine.opened == ["a", "b"]


def test_an_engine_that_broke_is_opened_afresh_once_nobody_uses_it(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.rows = 2
    pool = new_pool()
    with pool.lease(EngineSpec("a"), wait_on):
        with pytest.raises(BackendFailure), pool.lease(EngineSpec("a"), wait_on):
            raise BackendFailure("it stood still")
        assert loaded(pool) == ""
        assert not machine.backends["a"].closed, "another row is still in it"
    assert machine.backends["a"].closed
    use(pool, "a")
    assert machine.opened == ["a", "a"]


def test_an_engine_that_broke_is_closed_before_it_is_opened_afresh(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.memory = 1
    pool = new_pool()
    use(pool, "a")
    machine.backends["a"].may_close = machine.gates["closing"] = threading.Event()

    def break_down() -> None:
        with pytest.raises(BackendFailure), pool.lease(EngineSpec("a"), wait_on):
            wait_until(lambda: pool._queue)
            raise BackendFailure("it stood still")

    def wait_for_load(_why: str) -> bool:
        if pool.is_loading:
            machine.gates["closing"].set()
        return True

    with ThreadPoolExecutor(1) as threads:
        breaking = threads.submit(break_down)
        wait_until(lambda: not machine.backends["a"].closed and pool._held[0].users)
        with pool.lease(EngineSpec("a"), wait_for_load) as engine:
            assert engine is not None
        breaking.result(PATIENCE_S)
    assert loaded(pool) == "a"
    assert machine.opened == ["a", "a"], "it was opened while the broken one had the memory"


def test_models_are_loaded_in_the_order_in_which_they_were_asked_for(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.gates["a"] = threading.Event()
    pool = new_pool()
    is_awake = threading.Event()
    looks: list[str] = []

    def sleep_on(_why: str) -> bool:
        return is_awake.wait(PATIENCE_S)

    def look(why: str) -> bool:
        if loaded(pool) == "a":
            looks.append(why)
        if len(looks) == 3:
            is_awake.set()
        return True

    def ask(name: str, wait: Callable[[str], bool]) -> None:
        with pool.lease(EngineSpec(name), wait):
            pass

    with ThreadPoolExecutor(3) as threads:
        waiting = []
        for name, wait in (("a", wait_on), ("b", sleep_on), ("c", look)):
            waiting.append(threads.submit(ask, name, wait))
            wait_until(lambda: len(pool._queue) == len(waiting))
        machine.gates["a"].set()
        try:
            waiting[0].result(PATIENCE_S)
            wait_until(lambda: is_awake.is_set() or "c" in machine.opened)
        finally:
            is_awake.set()
        for one in waiting:
            one.result(PATIENCE_S)
    assert "".join(machine.opened) == "abc"


def test_what_was_loaded_for_a_pool_that_is_closed_is_closed_too(
    machine: Machine, new_pool: Callable[..., EnginePool]
) -> None:
    machine.gates["a"] = threading.Event()
    pool = new_pool()
    calls: list[str] = []
    with pool.lease(EngineSpec("a"), lambda why: bool(calls.append(why))) as engine:
        assert engine is None
    pool.close()
    machine.gates["a"].set()
    wait_until(lambda: machine.backends and machine.backends["a"].closed)


def test_whoever_is_told_hears_what_is_loaded_and_what_goes(
    new_pool: Callable[..., EnginePool],
) -> None:
    heard: list[Sequence[str]] = []
    gone: list[str] = []
    pool = new_pool(
        budget=1,
        on_change=lambda: heard.append(loaded(pool)),
        on_close=lambda engine: gone.append(engine.name),
    )
    use(pool, "ab")
    assert gone == ["a"]
    wait_until(lambda: heard[-1] == "b")

"""What a launch holds on its GPU, and when it is given up. The GPU is played: none can be made to fail."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda import polling, watch
from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.contract import PEER_POINTERS, POINTERS, Bias, Params
from engine.backends.cuda.launch import CudaLaunch, DeviceContext, LaunchPlan, params_of
from engine.backends.cuda.resources import KEPT_BYTES, LaunchResources, ResourcePool
from engine.errors import BackendFailure, DeviceLost
from engine.sampling import SamplingParams

PLAN = LaunchPlan((1, 2, 3), 8)


class PlayedDevice:
    """Counts what is held on it, by kind; the call named by `refuses` fails."""

    ordinal = 0
    abandoned = False
    driver = SimpleNamespace(
        CUresult=SimpleNamespace(CUDA_SUCCESS="OK", CUDA_ERROR_NOT_READY="RUNNING"),
        cuStreamQuery=lambda _stream: ("RUNNING",),
    )

    def __init__(self, refuses: str = "") -> None:
        self.held: Counter[str] = Counter()
        self.calls: list[tuple[Any, ...]] = []
        self.fills: list[tuple[int, int]] = []
        self.uploads: list[tuple[int, NDArray[Any], int]] = []
        self.l2_aside: list[int] = []
        self.kept_in_l2: list[tuple[int, int, int]] = []
        self._refuses = refuses
        self._next = 1000

    def _hold(self, what: str) -> int:
        if what == self._refuses:
            raise BackendFailure(f"{what} was refused")
        self.held[what] += 1
        self._next += 1
        return self._next

    def activate(self) -> None:
        pass

    def synchronise(self) -> None:
        pass

    def fill(self, pointer: int, size: int, *_more: Any) -> None:
        self.fills.append((pointer, size))

    def upload_pinned(self, pointer: int, values: NDArray[Any], stream: int) -> None:
        if self._refuses == "upload":
            raise BackendFailure("upload was refused")
        self.uploads.append((pointer, values, stream))

    def allocate(self, _size: int) -> int:
        return self._hold("memory")

    def free(self, _pointer: int) -> None:
        self.held["memory"] -= 1

    def allocate_mapped(self, size: int) -> tuple[NDArray[np.uint8], int]:
        return np.zeros(size, np.uint8), self._hold("pinned memory")

    def free_mapped(self, _view: NDArray[np.uint8]) -> None:
        self.held["pinned memory"] -= 1

    def stream(self) -> int:
        return self._hold("stream")

    def set_aside_l2(self, size: int) -> None:
        self.l2_aside.append(size)

    def keep_in_l2(self, stream: int, address: int, size: int) -> None:
        self.kept_in_l2.append((stream, address, size))

    def launch(self, *_arguments: Any, **_more: Any) -> None:
        pass

    def call(self, name: str, *arguments: Any) -> None:
        self.calls.append((name, *arguments))


def context(device: PlayedDevice, kernel: Any = lambda _profile, _filters: "kernel", rank: int = 0) -> Any:
    memory = SimpleNamespace(
        **dict.fromkeys(PEER_POINTERS, 8), mail_bytes=512, stop_flag=8, cleared=4096, cleared_bytes=768
    )
    layout = SimpleNamespace(
        plan=SimpleNamespace(cores=132),
        shared_bytes=0,
        filter_bytes=64,
        tuning=Tuning(),
        tiles_from=65,
    )
    return SimpleNamespace(
        device=device,
        pool=ResourcePool(cast("Any", device)),
        memory=memory,
        pointers=Params(),
        layout=layout,
        kernel=kernel,
        blocks_a_split=4,
        rank=rank,
        rows=1,
        team=[memory],
        vocab=100,
        serial=1,
        spin_budget_s=1.5,
        all_resident=True,
    )


def in_pool(pool: ResourcePool) -> Counter[str]:
    """How much lies in it, by the names of PlayedDevice."""
    return Counter(
        {
            "memory": sum(map(len, pool.memory.values())),
            "pinned memory": sum(map(len, pool.mapped.values())),
            "stream": len(pool.streams),
        }
    )


@pytest.mark.parametrize("refused", ["memory", "stream", "pinned memory", "upload"])
def test_a_launch_that_cannot_be_made_ready_gives_back_what_it_held(refused: str) -> None:
    device = PlayedDevice(refused)
    where = context(device)
    with pytest.raises(BackendFailure, match=f"{refused} was refused"):
        CudaLaunch(where, PLAN)
    assert +device.held == +in_pool(where.pool)


def test_a_launch_clears_and_copies_once() -> None:
    device = PlayedDevice()
    launch = CudaLaunch(context(device), PLAN)
    assert device.fills == [(4096, 768)]
    [(base, data, stream)] = device.uploads
    assert stream == launch._stream
    assert launch._view.status.prefilled == 0
    assert np.shares_memory(data, launch._view.ring.base)
    assert launch._params.ids == base


def ids_at(launch: CudaLaunch, first: int, count: int) -> list[int]:
    """Ids from `first` on, where the kernel finds them."""
    [(base, data, _)] = launch._context.device.uploads
    begin = launch._params.ids + 4 * first - base
    return data[begin : begin + 4 * count].view(np.int32).tolist()  # type: ignore[no-any-return]


def test_the_kernel_gets_the_ids_that_it_looks_at() -> None:
    plan = LaunchPlan((5, 6, 7, 8, 9), 8, first=2, prefill_end=4)
    launch = CudaLaunch(context(PlayedDevice()), plan)
    assert ids_at(launch, 2, 3) == [7, 8, 9]
    [(base, _, _)] = launch._context.device.uploads
    assert launch._params.ids == base - 8


def test_penalties_look_at_all_ids() -> None:
    sampling = SamplingParams(temperature=1.0, repetition_penalty=1.2)
    plan = LaunchPlan((5, 6, 7, 8, 9), 8, first=2, prefill_end=4, sampling=sampling)
    assert ids_at(CudaLaunch(context(PlayedDevice()), plan), 0, 5) == [5, 6, 7, 8, 9]


def test_stop_ids_and_biases_are_where_the_kernel_looks() -> None:
    sampling = SamplingParams(temperature=1.0, logit_bias=((4, -2.0),))
    plan = LaunchPlan((5, 6, 7), 8, sampling=sampling, stop_ids=frozenset((9, 3)))
    device = PlayedDevice()
    params = CudaLaunch(context(device), plan)._params
    [(base, data, _)] = device.uploads
    at = params.stop_ids - base
    assert data[at : at + 8].view(np.int32).tolist() == [3, 9]
    bias = Bias.from_buffer_copy(data[params.biases - base :].tobytes())
    assert (bias.id, bias.value) == (4, -2.0)


@pytest.mark.parametrize(("rows", "along"), [(1, 1), (4, 0)])
def test_a_last_token_goes_along_only_where_no_launch_is_shared(rows: int, along: int) -> None:
    where = context(PlayedDevice())
    where.rows = rows
    assert params_of(where, PLAN).last_along == along


def test_every_launch_is_told_where_the_model_lies_on_all_gpus() -> None:
    memories = [
        SimpleNamespace(**{name: 100 * rank + i for i, name in enumerate(POINTERS, 1)}) for rank in (1, 2)
    ]
    made = context(PlayedDevice())
    where = DeviceContext(
        made.device, made.layout, memories[1], made.kernel, 4, rank=1, team=cast("Any", memories)
    )
    layout = SimpleNamespace(sharding=SimpleNamespace(whole=SimpleNamespace(vocab=100)), tiles_from=65)
    where.layout = cast("Any", layout)
    for plan in (PLAN, replace(PLAN, caches=(7, 8))):
        params = params_of(where, plan)
        assert params.rank == 1
        assert [params.peers[rank].mail for rank in (0, 1)] == [m.mail for m in memories]
        assert params.control == memories[1].control
        assert params.kv == (8 if plan.caches else memories[1].kv)


def test_a_model_sets_a_part_of_each_gpus_cache_aside_once() -> None:
    devices = [PlayedDevice(), PlayedDevice()]
    for rank, device in enumerate(devices):
        made = context(device)
        DeviceContext(made.device, made.layout, made.memory, made.kernel, 4, rank=rank, team=made.team)
    assert [device.l2_aside for device in devices] == [[12 << 20]] * 2


def test_each_launch_keeps_its_mailboxes_in_the_cache() -> None:
    """Whatever launch had the stream before."""
    device = PlayedDevice()
    where = context(device)
    streams = []
    for _ in range(2):
        launch = CudaLaunch(where, PLAN)
        streams.append(launch._stream)
        launch._resources.release()
    assert device.kept_in_l2 == [(stream, 8, 512) for stream in streams]


def test_launches_of_one_length_use_the_same_things_one_after_the_other() -> None:
    device = PlayedDevice()
    where = context(device)
    for _ in range(3):
        CudaLaunch(where, PLAN)._resources.release()
        assert device.held == in_pool(where.pool)
    assert device.held["pinned memory"] == 1


def test_pinned_memory_that_is_lent_again_holds_zeros() -> None:
    resources = LaunchResources(ResourcePool(cast("Any", PlayedDevice())))
    first, _ = resources.allocate_mapped(5000)
    first[:] = 7
    resources.release()
    again, _ = resources.allocate_mapped(4999)
    assert again.base is first.base
    assert not again.any()


def test_a_stop_that_is_on_its_way_is_waited_for_before_the_next_launch() -> None:
    device = PlayedDevice()
    where = context(device)
    launch = CudaLaunch(where, PLAN)
    launch.stop()
    assert [name for name, *_ in device.calls] == ["cuMemcpyHtoDAsync"]
    side = device.calls[0][-1]
    launch._resources.release()
    assert ("cuStreamSynchronize", side) in device.calls


def test_what_is_large_goes_back_to_the_driver() -> None:
    device = PlayedDevice()
    resources = LaunchResources(ResourcePool(cast("Any", device)))
    resources.memory(KEPT_BYTES + 1)
    resources.allocate_mapped(KEPT_BYTES + 1)
    resources.release()
    assert not any(device.held.values())


def test_a_launch_whose_kernel_does_not_compile_gives_back_what_it_held() -> None:
    device = PlayedDevice()

    def broken(_profile: bool, _filters: bool) -> None:
        raise BackendFailure("it does not compile")

    with pytest.raises(BackendFailure, match="it does not compile"):
        CudaLaunch(where := context(device, broken), PLAN)
    assert set(device.held) == {"memory", "pinned memory", "stream"}
    assert device.held == in_pool(where.pool)


class Clock:
    """Goes on by so much with each sleep."""

    def __init__(self, step: float) -> None:
        self.now, self._step = 100.0, step
        self.slept: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += self._step


def started(
    monkeypatch: pytest.MonkeyPatch, plan: LaunchPlan, rank: int = 0, step: float = 1.0
) -> tuple[CudaLaunch, Clock]:
    """A launch whose kernel never says that it has ended."""
    clock = Clock(step)
    for each in (watch, polling):
        monkeypatch.setattr(each, "time", clock)
    launch = CudaLaunch(context(PlayedDevice(), rank=rank), plan)
    launch.start()
    return launch, clock


def test_a_kernel_that_never_runs_is_a_lost_gpu_whose_memory_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch, clock = started(monkeypatch, LaunchPlan((1, 2, 3), 8, prefill_end=2))
    with pytest.raises(DeviceLost, match="GPU 0 was lost while it ran a request: no token"):
        launch.wait()
    assert clock.now == pytest.approx(100 + 10 + 4 * 1.5, abs=2.5)
    launch.close()
    device = launch._context.device
    assert device.abandoned
    assert device.held["stream"] == 2


def test_a_kernel_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, clock = started(monkeypatch, LaunchPlan((1, 2, 3), 8, prefill_end=2))
    for chunk in (1, 2):
        clock.now += 15
        launch._view.status.prefilled = chunk
        assert launch.outcome is None
    for token in range(3):
        clock.now += 15
        launch._view.ring[token] = 7
        assert launch.outcome is None
    assert not launch.ended
    clock.now += 17
    assert launch.outcome is None
    assert launch.ended


@pytest.mark.parametrize(
    ("ids", "pauses"),
    [
        pytest.param([7], True, id="more are to come"),
        pytest.param([7, 7], False, id="as many as were asked for"),
    ],
)
def test_the_end_is_looked_for_without_pauses_once_the_last_token_is_there(
    monkeypatch: pytest.MonkeyPatch, ids: list[int], pauses: bool
) -> None:
    launch, clock = started(monkeypatch, LaunchPlan((1, 2, 3), 2, prefill_end=2), step=1e-4)
    clock.now += 1
    launch._view.ring[: len(ids)] = ids
    assert [token.id for token in launch.poll(1.0)] == ids
    assert not launch.poll(1e-3)
    assert clock.slept and any(clock.slept) is pauses


def test_passes_that_tell_the_host_nothing_have_the_time_of_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch, clock = started(monkeypatch, LaunchPlan((1,) * 100, 1, keep_logits=True))
    clock.now += 10 + 100 * 4 * 1.5 - 1
    assert launch.outcome is None
    assert not launch.ended


def test_another_gpu_of_a_team_must_end_once_it_was_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, clock = started(monkeypatch, LaunchPlan((1, 2, 3), 8, prefill_end=2), rank=1)
    clock.now += 1000
    assert launch.outcome is None
    assert not launch.ended
    launch.abort()
    with pytest.raises(DeviceLost):
        launch.wait()

"""What a backend gives back. The GPUs are played: memory that leaks there is seen nowhere else."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda import backend
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.launch import LaunchPlan
from engine.backends.cuda.monokernel import kernel_headers
from engine.errors import BackendFailure, ConfigError, NoRoom
from engine.models.catalogue import open_model


class PlayedDevice:
    name = "NVIDIA H200"
    compute_capability = (9, 0)

    def __init__(self, ordinal: int, free: int = 140_000_000_000) -> None:
        self.ordinal = ordinal
        self.free = free
        self.closed = False

    def reach(self, _other: PlayedDevice) -> None:
        pass

    def activate(self) -> None:
        pass

    def attribute(self, which: str) -> int:
        return {"MULTIPROCESSOR_COUNT": 132}[which]

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return 140_000_000_000

    def close(self) -> None:
        self.closed = True


def test_gpus_on_which_a_model_does_not_open_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = [PlayedDevice(0), PlayedDevice(1)]

    def full(device: PlayedDevice, *_: Any) -> None:
        if device.ordinal == 1:
            raise BackendFailure("cuMemAlloc failed on GPU 1: CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(backend, "reachable_devices", lambda _count, **_: devices)
    monkeypatch.setattr(backend, "load_model", full)
    with pytest.raises(BackendFailure, match="OUT_OF_MEMORY"):
        CudaBackend(open_model("random:laneformer-2b"), {}, devices=2)
    assert [device.closed for device in devices] == [True, True]


@pytest.mark.parametrize(
    ("devices", "copies"),
    [
        ([PlayedDevice(0)], True),
        ([PlayedDevice(0, free=30_000_000_000)], False),
        ([PlayedDevice(0, free=30_000_000_000)] * 2, False),
        ([PlayedDevice(0), PlayedDevice(1, free=15_000_000_000)], False),
    ],
    ids=["room", "no room beside kept sequences", "virtual GPUs share their room", "a GPU without"],
)
def test_packed_weights_are_copied_where_all_gpus_have_room(
    monkeypatch: pytest.MonkeyPatch, devices: list[PlayedDevice], copies: bool
) -> None:
    found: list[bool] = []

    def see(_device: PlayedDevice, layout: Layout, *_: Any) -> None:
        found.append(layout.has_copy)
        raise BackendFailure("seen")

    monkeypatch.setattr(backend, "reachable_devices", lambda _count, **_: devices)
    monkeypatch.setattr(backend, "load_model", see)
    with pytest.raises(BackendFailure, match="seen"):
        CudaBackend(open_model("random:qwen3-8b:q8_0"), {}, devices=len(devices))
    assert found == [copies]


def test_it_is_told_that_packed_weights_have_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []

    def stop(*_: Any) -> None:
        raise BackendFailure("seen")

    monkeypatch.setattr(backend, "reachable_devices", lambda _count, **_: [PlayedDevice(0, 30_000_000_000)])
    monkeypatch.setattr(backend, "load_model", stop)
    with pytest.raises(BackendFailure, match="seen"):
        CudaBackend(open_model("random:qwen3-8b:q8_0"), {}, progress=lambda one: told.append(one.what))
    assert any("no room for the 16-bit copy" in what for what in told)


@pytest.mark.parametrize("option", ["prefill_chunk", "tiles_from"])
def test_an_option_of_tiles_is_refused_where_their_copy_has_no_room(
    monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    monkeypatch.setattr(backend, "reachable_devices", lambda _count, **_: [PlayedDevice(0, 30_000_000_000)])
    with pytest.raises(ConfigError, match=rf"{option} is 512, but .* no room for the 16-bit copy"):
        CudaBackend(open_model("random:qwen3-8b:q8_0"), {option: 512})


def test_kernels_are_compiled_ahead_as_a_start_beside_so_many_free_bytes_wants_them() -> None:
    model = open_model("random:qwen3-8b:q8_0")
    roomy, tight = (
        kernel_headers(model, 1, 132, {}, profile=False, free=free)[0]
        for free in (140_000_000_000, 30_000_000_000)
    )
    assert "constexpr bool PREFILL_BY_TILES = true;" in roomy
    assert "constexpr bool PREFILL_BY_TILES = false;" in tight


def test_a_launch_that_does_not_start_does_not_count_as_running(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[object] = []

    class Refused:
        needs_recovery = False

        def __init__(self, *_: Any) -> None:
            self.ended = False

        def start(self) -> None:
            raise BackendFailure("cuLaunchCooperativeKernel failed on GPU 0")

        def close(self) -> None:
            self.ended = True
            closed.append(self)

    monkeypatch.setattr(backend, "CudaLaunch", Refused)
    opened = CudaBackend.__new__(CudaBackend)
    opened.device_contexts, opened._current, opened._lock = [None], None, threading.Lock()  # type: ignore[list-item]
    opened._lent = None
    for _ in range(2):
        with pytest.raises(BackendFailure, match="cuLaunchCooperativeKernel"):
            opened._start(LaunchPlan((1, 2), 8))
    assert len(closed) == 2


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> tuple[CudaBackend, list[LaunchPlan]]:
    """A backend without a device, and the launches that it was to score with."""
    plans: list[LaunchPlan] = []

    class Played:
        def __init__(self, plan: LaunchPlan) -> None:
            plans.append(plan)

        def wait(self) -> None: ...

        def close(self) -> None: ...

        def logits(self) -> NDArray[np.float32]:
            return np.full((plans[-1].steps, opened.config.vocab), len(plans), np.float32)

    opened = CudaBackend.__new__(CudaBackend)
    opened.config = replace(open_model("random:tiny-llama").config, context=700)
    opened._current, opened._scheduler, opened._lock = None, None, threading.Lock()
    opened._is_scoring = False
    monkeypatch.setattr(opened, "_start", Played)
    return opened, plans


@pytest.mark.parametrize("count", [1, 300])
def test_one_row_of_logits_is_kept_after_a_prompt(
    scorer: tuple[CudaBackend, list[LaunchPlan]], count: int
) -> None:
    opened, plans = scorer
    tokens = (1,) * count
    assert opened.logits(tokens, count - 1).shape == (1, opened.config.vocab)
    (plan,) = plans
    assert (plan.first, plan.steps, plan.keep_logits, tuple(plan.ids)) == (0, 1, True, tokens)


def test_later_launches_of_a_scoring_go_on_from_what_the_first_has_left(
    scorer: tuple[CudaBackend, list[LaunchPlan]],
) -> None:
    opened, plans = scorer
    rows = opened.logits((1,) * 600, 10)
    assert [(plan.first, plan.prefill_end, plan.steps) for plan in plans] == [
        (0, 10, 256),
        (266, 266, 256),
        (522, 522, 78),
    ]
    assert [int(rows[i, 0]) for i in (0, 255, 256, 511, 512, 589)] == [1, 1, 2, 2, 3, 3]


def test_nobodys_launch_begins_between_those_of_a_scoring(
    scorer: tuple[CudaBackend, list[LaunchPlan]],
) -> None:
    opened, plans = scorer
    refused: list[str] = []

    def launch() -> None:
        with pytest.raises(NoRoom) as error:
            opened.logits((1, 2))
        refused.append(str(error.value))

    opened.logits((1,) * 600, 10, on_step=launch)

    assert refused == ["another answer's log-probabilities are computed, which takes the GPU alone"] * 3
    assert len(plans) == 3
    assert opened.logits((1, 2)).shape == (2, opened.config.vocab)

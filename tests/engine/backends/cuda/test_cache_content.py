"""What is read of a cache on GPUs, and of which. The GPUs are played."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Job, Outcome, Token
from engine.backends.cuda import backend
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.cache_content import keys_and_values, read_cache
from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.driver import Device
from engine.backends.cuda.kept_caches import KeptCaches
from engine.backends.cuda.launch import LaunchPlan
from engine.kv_cache import KeysAndValues
from engine.models.presets import load_preset
from tests.engine.backends.cuda.test_constants import layout_of
from tests.engine.backends.cuda.test_kept_caches import PlayedDevice

CONFIG = load_preset("tiny-llama").config
BLOCK = 16
CAME_WITH_THE_MODEL = 77


class Memory:
    """Of a device: one array at address 1,000."""

    def __init__(self, words: NDArray[np.uint16]) -> None:
        self._words = words
        self.downloaded = 0

    def download(self, pointer: int, shape: tuple[int], _dtype: Any) -> NDArray[np.uint16]:
        first = (pointer - 1000) // 2
        self.downloaded += shape[0]
        return self._words[first : first + shape[0]]


@pytest.mark.parametrize("fp8", [False, True])
@pytest.mark.parametrize("positions", [1, 16, 20, CONFIG.context])
def test_no_more_than_the_blocks_of_the_positions_is_read(positions: int, fp8: bool) -> None:
    layout = layout_of(CONFIG, tuning=Tuning(fp8_cache=fp8))
    numbers = np.random.default_rng(0).integers(0, 0x70, 2 * layout.kv_halves)
    words = numbers.astype(np.uint8).view(np.uint16)
    memory = Memory(words)

    found = read_cache(cast("Device", memory), 1000, layout, positions)

    blocks = -(-positions // BLOCK)
    assert memory.downloaded == layout.kv_halves * blocks // (layout.capacity // BLOCK)
    whole = keys_and_values(words, CONFIG, layout.capacity, fp8=fp8)
    for mine, all_of_it in zip(found, whole, strict=True):
        np.testing.assert_array_equal(mine, all_of_it[:, :, :positions])


class PlayedLaunch:
    """Has generated two tokens, and ended."""

    outcome = Outcome("length", 1, 1)
    ended = True

    def __init__(self) -> None:
        self._tokens = [Token(8, 1), Token(9, 2)]

    def poll(self, _timeout: float) -> Sequence[Token]:
        fresh, self._tokens = self._tokens, []
        return fresh

    def sequence(self) -> tuple[int, ...]:
        return (1, 2, 3, 8)

    def close(self) -> None: ...


def test_a_run_of_an_owner_goes_on_from_what_is_kept_and_is_read_where_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[LaunchPlan] = []
    read: list[tuple[int, int]] = []

    def start(plan: LaunchPlan) -> PlayedLaunch:
        plans.append(plan)
        opened._current = cast("Any", PlayedLaunch())
        return cast("Any", opened._current)  # type: ignore[no-any-return]

    def content(_device: Device, kept: int, _layout: Any, positions: int) -> KeysAndValues:
        read.append((kept, positions))
        return KeysAndValues(*(np.zeros((1, 1, positions, 1), np.float32) for _ in range(2)))

    monkeypatch.setattr(backend, "read_cache", content)
    opened = CudaBackend.__new__(CudaBackend)
    monkeypatch.setattr(opened, "_start_plan", start)
    device = PlayedDevice()
    opened.config, opened.rows = CONFIG, 1
    opened.layout = layout_of(CONFIG)
    memory = SimpleNamespace(kv=CAME_WITH_THE_MODEL)
    opened.device_contexts = [cast("Any", SimpleNamespace(device=device, memory=memory))]
    opened._caches = KeptCaches([cast("Device", device)], 100, 1000)
    opened._current, opened._lent, opened._lock = None, None, threading.Lock()
    opened._is_scoring = False

    for salt in ("bench", "bench", ""):
        tokens, _ = opened.tokens_and_cache(Job((1, 2, 3), 2, cache_salt=salt))
        assert tokens == [8, 9]

    assert [plan.first for plan in plans] == [0, 2, 0]
    assert read == [(plans[0].caches[0], 4), (plans[0].caches[0], 4), (CAME_WITH_THE_MODEL, 4)]

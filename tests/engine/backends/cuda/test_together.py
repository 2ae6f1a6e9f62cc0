"""Which models share launches, and with what kernels."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda.contract import Control, Finish, Status
from engine.backends.cuda.launch import DeviceContext, LaunchPlan
from engine.backends.cuda.model_header import header
from engine.backends.cuda.seats import kernels_for
from engine.backends.cuda.shared_memory import SHARED_BYTES
from engine.backends.cuda.together import breakdown_of, several_layout, shares_launches
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.storage import Storage
from tests.engine.backends.cuda.test_constants import EXPERTS, LLAMA, layout_of
from tests.gpu.models import CONFIGS, GEMMA_2_2B, QWEN3_32B

LANEFORMER = load_preset("laneformer-2b").config


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, ()), (2, (2,)), (3, (2, 4)), (4, (2, 4)), (5, (2, 4, 8)), (8, (2, 4, 8))]
)
def test_kernels_are_compiled_up_to_the_size_that_holds_all_rows(rows: int, sizes: tuple[int, ...]) -> None:
    assert kernels_for(rows) == sizes


@pytest.mark.parametrize("config", [LLAMA, LANEFORMER, QWEN3_32B], ids=lambda config: config.name)
def test_dense_models_in_sixteen_bits_share_launches(config: ModelConfig) -> None:
    layout = layout_of(config)
    assert shares_launches(layout)
    for size in kernels_for(8):
        several = several_layout(layout, None, size)
        assert several.capacity == layout.capacity
        assert several.slots * (several.slot_units * 512 + 16) + several.scratch_bytes < SHARED_BYTES
        assert f"constexpr int REQUESTS = {size};" in header(several)


@pytest.mark.parametrize(
    ("config", "storage"),
    [(LLAMA, Storage.FP8_BLOCK), (EXPERTS, None), (GEMMA_2_2B, None), (CONFIGS["head-of-all-lanes"], None)],
    ids=["packed", "experts", "norms after modules", "a head over all lanes"],
)
def test_the_others_have_one_row(config: ModelConfig, storage: Storage | None) -> None:
    assert not shares_launches(layout_of(config, storage))


def context_after(wait: int) -> DeviceContext:
    """Of a GPU whose watchdog has seen so much: 0 is nothing."""
    control = np.frombuffer(bytes(Control(wait=wait)), np.uint8)

    def download(_address: int, shape: tuple[int, ...], _dtype: Any) -> NDArray[np.uint8]:
        assert shape == (ctypes.sizeof(Control),)
        return control

    device = SimpleNamespace(download=download)
    made = SimpleNamespace(device=device, memory=SimpleNamespace(control=0), spin_budget_s=1.0, rank=0)
    return cast("DeviceContext", made)


@pytest.mark.parametrize(("wait", "breaks"), [(0, False), (1, True)])
def test_a_launch_that_only_reads_breaks_down_if_its_watchdog_says_so(wait: int, breaks: bool) -> None:
    found = breakdown_of(context_after(wait), [LaunchPlan((1, 2, 3), 0)], [Status()])
    assert (found is not None) == breaks


@pytest.mark.parametrize(("finish", "breaks"), [(Finish.LENGTH, False), (Finish.ABORTED, True)])
def test_a_launch_that_decodes_breaks_down_if_a_row_was_aborted(finish: Finish, breaks: bool) -> None:
    found = breakdown_of(context_after(1), [LaunchPlan((1, 2, 3), 4)], [Status(finish=finish)])
    assert (found is not None) == breaks

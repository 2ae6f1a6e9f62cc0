"""Which models share launches, and with what kernels."""

from __future__ import annotations

import pytest

from engine.backends.cuda.constants import SHARED_BYTES, header
from engine.backends.cuda.together import kernels_for, several_layout, shares_launches
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

"""Packed weights in the monokernel, run on the CPU thread by thread: what a format means, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from engine.reference import Reference
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.cache import of_reference, require_close
from tests.gpu.models import AsKept
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.test_emulation import SMALL

PROMPT = 5
DECODE_TOLERANCE = 6e-4
"""Of the largest number of a layer's keys and values, which are themselves rounded to FP16."""
PREFILL_TOLERANCE = {Storage.FP8_BLOCK: 6e-3, Storage.Q8_0: 1e-3, Storage.MXFP4: 1e-3}
"""Prefill rounds weights and activations once to sixteen bits: to BF16 with FP8."""
CONFIGS = {
    Storage.FP8_BLOCK: replace(SMALL, hidden=160, heads=6, ffn=264, vocab=104),
    Storage.MXFP4: replace(SMALL, hidden=96, heads=6, ffn=288, vocab=104),
    Storage.Q8_0: replace(SMALL, hidden=96, heads=6, ffn=288, vocab=104),
}
"""Columns that fill no whole run or chunk of all warps, rows that fill no whole tile of a core."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled for a shape is there for all tests of it."""
    return tmp_path_factory.mktemp("packed")


@pytest.mark.parametrize("storage", CONFIGS)
@pytest.mark.parametrize("prefilled", [0, PROMPT - 1])
def test_packed_weights_leave_the_references_keys_and_values(
    storage: Storage, prefilled: int, folder: Path
) -> None:
    require_the_references(storage, prefilled, folder, Tuning(slot_units=24, unpacked_copy=False))


@pytest.mark.parametrize("storage", [Storage.FP8_BLOCK, Storage.Q8_0])
def test_a_prompt_goes_by_tiles_of_their_copy(storage: Storage, folder: Path) -> None:
    require_the_references(storage, PROMPT - 1, folder, Tuning())


def require_the_references(storage: Storage, prefilled: int, folder: Path, tuning: Tuning) -> None:
    config: ModelConfig = CONFIGS[storage]
    weights = RandomPacked(config, all_in(storage), 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()
    gpu = EmulatedGpu(folder, config, weights, 2, tuning)
    assert gpu.has_copy == tuning.unpacked_copy

    tokens = gpu.generate(prompt, 2, prefilled=prefilled)

    reference = Reference(AsKept(weights, gpu.chosen))
    known = PROMPT + 1
    cache = reference.new_cache(known)
    logits = reference.forward([*prompt, tokens[0]], cache)
    tolerance = PREFILL_TOLERANCE[storage] if prefilled else DECODE_TOLERANCE
    for token, row in zip(tokens, logits[PROMPT - 1 :], strict=True):
        assert row.max() - row[token] <= tolerance * np.abs(row).max()
    require_close(gpu.cache(known), of_reference(cache, config, known), tolerance, storage)

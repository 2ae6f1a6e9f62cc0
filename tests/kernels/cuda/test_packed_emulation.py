"""Packed weights in the monokernel, run on the CPU thread by thread: what a format means, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.models.storage import Storage
from engine.reference import Reference
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.cache import of_reference, require_close
from tests.gpu.models import AsKept
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.test_emulation import EXPERTS as EXPERTS_IN_16_BITS
from tests.kernels.cuda.test_emulation import GEMMA, GPT_OSS, SMALL
from tests.nightly import at_night, each_time_but

PROMPT = 5
DECODE_TOLERANCE = dict.fromkeys(Storage, 6e-4) | {Storage.Q4_K: 3e-3}
"""Of the largest number of a layer's keys and values, which are themselves rounded to FP16. Random blocks of
Q4_K have means, so keys are large and attention makes more of their last bits.
"""
PREFILL_TOLERANCE = {
    Storage.FP8_BLOCK: 6e-3,
    Storage.Q8_0: 1e-3,
    Storage.MXFP4: 1e-3,
    Storage.Q4_K: 6e-3,
    Storage.Q6_K: 1e-3,
}
"""Prefill rounds weights and activations once to sixteen bits: to BF16 with FP8."""
CONFIGS = {
    Storage.FP8_BLOCK: replace(SMALL, hidden=160, heads=6, ffn=264, vocab=104),
    Storage.Q4_K: replace(SMALL, hidden=256, heads=8, ffn=256, vocab=104),
    Storage.Q6_K: replace(SMALL, hidden=256, heads=8, ffn=256, vocab=104),
    Storage.MXFP4: replace(SMALL, hidden=96, heads=6, ffn=288, vocab=104),
    Storage.Q8_0: replace(SMALL, hidden=96, heads=6, ffn=288, vocab=104),
}
"""Columns that fill no whole run or chunk of all warps, rows that fill no whole tile of a core."""
EXPERTS = {
    Storage.FP8_BLOCK: replace(EXPERTS_IN_16_BITS, ffn=128, hidden=160),
    Storage.MXFP4: replace(GPT_OSS, ffn=64, hidden=96),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is compiled for a shape is there for all tests of it."""
    return tmp_path_factory.mktemp("packed")


@pytest.mark.parametrize("storage", each_time_but([Storage.Q6_K, Storage.Q8_0], CONFIGS))
@pytest.mark.parametrize("prefilled", [0, PROMPT - 1])
def test_packed_weights_leave_the_references_keys_and_values(
    storage: Storage, prefilled: int, folder: Path
) -> None:
    weights = RandomPacked(CONFIGS[storage], all_in(storage), 3)
    check_keys_and_values(weights, prefilled, storage, folder, Tuning(slot_units=32, unpacked_copy=False))


@pytest.mark.parametrize(
    ("storage", "slot_units"),
    [(Storage.MXFP4, 16), at_night(Storage.FP8_BLOCK, 24)],
    ids=["a slot is two quads", "a slot is a run of many tiles"],
)
def test_a_vector_is_longer_than_a_slots_columns(storage: Storage, slot_units: int, folder: Path) -> None:
    weights = RandomPacked(CONFIGS[storage], all_in(storage), 3)
    check_keys_and_values(weights, 0, storage, folder, Tuning(slot_units=slot_units, unpacked_copy=False))


@pytest.mark.parametrize("storage", [Storage.MXFP4, Storage.FP8_BLOCK])
@pytest.mark.parametrize("ffn", [7328, at_night(11552)], ids=["eight", "twelve"])
def test_digits_of_a_long_vector_are_made_some_pieces_at_a_time(
    storage: Storage, ffn: int, folder: Path
) -> None:
    """So many of them a thread, the last ones not whole."""
    config = replace(CONFIGS[storage], layers=1, windows=(0,), ffn=ffn)
    weights = RandomPacked(config, all_in(storage), 3)
    check_keys_and_values(weights, 0, storage, folder, Tuning(unpacked_copy=False))


@pytest.mark.parametrize("prefilled", [0, PROMPT - 1])
def test_sms_that_equal_shares_leave_out_go_along(prefilled: int, folder: Path) -> None:
    """Of twelve two have no tiles of most matrices, and one of them has some of gate and up."""
    weights = RandomPacked(CONFIGS[Storage.FP8_BLOCK], all_in(Storage.FP8_BLOCK), 3)
    tuning = Tuning(slot_units=32, unpacked_copy=False)
    check_keys_and_values(weights, prefilled, Storage.FP8_BLOCK, folder, tuning, cores=12, equal=True)


@pytest.mark.parametrize("slot_units", [at_night(17), 49])
@pytest.mark.parametrize("cores", [at_night(6), 12], ids=["three or four", "one to four"])
@pytest.mark.parametrize(("storage", "ffn"), [(Storage.FP8_BLOCK, 1160), at_night(Storage.Q8_0, 1152)])
def test_groups_of_few_tiles_fill_the_rows_of_products(
    storage: Storage, ffn: int, cores: int, slot_units: int, folder: Path
) -> None:
    """With eight runs of a tile, or with two quads a turn."""
    weights = RandomPacked(replace(CONFIGS[storage], ffn=ffn), all_in(storage), 3)
    tuning = Tuning(slot_units=slot_units, unpacked_copy=False)
    check_keys_and_values(weights, 0, storage, folder, tuning, cores)


def test_fp8_goes_with_norms_after_modules(folder: Path) -> None:
    """There no warp has a run of the vector whole: its products are not those straight from the slots.

    Norms lie less one in BF16, which the reference does not know of, so it is as far off as with prompts.
    """
    weights = RandomPacked(replace(GEMMA, hidden=256, ffn=264), all_in(Storage.FP8_BLOCK), 3)
    tuning = Tuning(unpacked_copy=False)
    tolerance = PREFILL_TOLERANCE[Storage.FP8_BLOCK]
    check_keys_and_values(weights, 0, Storage.FP8_BLOCK, folder, tuning, tolerance=tolerance)


@pytest.mark.nightly
def test_columns_of_odd_numbers_of_chunks_and_a_tied_head(folder: Path) -> None:
    """Five and eleven chunks: the last quad and the last run are not full."""
    config = replace(CONFIGS[Storage.MXFP4], hidden=160, heads=5, kv_heads=1, ffn=352, tied_head=True)
    weights = RandomPacked(config, all_in(Storage.MXFP4), 3)
    check_keys_and_values(weights, 0, Storage.MXFP4, folder, Tuning(slot_units=32, unpacked_copy=False))


@pytest.mark.parametrize("storage", [Storage.FP8_BLOCK, Storage.Q8_0, at_night(Storage.Q4_K)])
def test_a_prompt_goes_by_tiles_of_their_copy(storage: Storage, folder: Path) -> None:
    weights = RandomPacked(CONFIGS[storage], all_in(storage), 3)
    check_keys_and_values(weights, PROMPT - 1, storage, folder, Tuning())


@pytest.mark.parametrize("storage", each_time_but([Storage.FP8_BLOCK], EXPERTS))
@pytest.mark.parametrize("prefilled", [0, PROMPT - 1])
def test_packed_experts_leave_the_references_keys_and_values(
    storage: Storage, prefilled: int, folder: Path
) -> None:
    weights = RandomPacked(EXPERTS[storage], lambda name: storage if ".experts." in name else Storage.F16, 3)
    check_keys_and_values(weights, prefilled, storage, folder, Tuning(slot_units=32))


@pytest.mark.parametrize("storage", each_time_but([Storage.Q8_0], [Storage.FP8_BLOCK, Storage.Q8_0]))
def test_the_router_is_folded_through_packed_attention(storage: Storage, folder: Path) -> None:
    weights = RandomPacked(EXPERTS[Storage.FP8_BLOCK], all_in(storage), 3)
    check_keys_and_values(weights, 0, storage, folder, Tuning(slot_units=32))


def check_keys_and_values(
    weights: RandomPacked,
    prefilled: int,
    storage: Storage,
    folder: Path,
    tuning: Tuning,
    cores: int = 2,
    *,
    equal: bool = False,
    tolerance: float | None = None,
) -> None:
    config = weights.config
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()
    gpu = EmulatedGpu(folder, config, weights, cores, tuning, equal=equal)
    assert gpu.has_copy == (tuning.unpacked_copy)

    tokens = gpu.generate(prompt, 2, prefilled=prefilled)

    reference = Reference(AsKept(weights, gpu.chosen))
    known = PROMPT + 1
    cache = reference.new_cache(known)
    logits = reference.forward([*prompt, tokens[0]], cache)
    tolerance = tolerance or (PREFILL_TOLERANCE if prefilled else DECODE_TOLERANCE)[storage]
    for token, row in zip(tokens, logits[PROMPT - 1 :], strict=True):
        assert row.max() - row[token] <= tolerance * np.abs(row).max()
    require_close(gpu.cache(known), of_reference(cache, config, known), tolerance, storage)

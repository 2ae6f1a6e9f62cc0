"""Which matrices stay packed on GPUs, and what that is unpacked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.contract import HALF_TILES
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import LAYER_MATRICES, Matrix, pack_core, plan, validate
from engine.backends.cuda.units import UNIT_FORMS, chunks_a_slot, group_bytes, mxfp4_words, pack_group
from engine.errors import ConfigError
from engine.models.checkpoints.block_formats import FP4_LEVELS
from engine.models.config import Lanes
from engine.models.presets import load_preset
from engine.models.storage import Storage, matrix_bytes
from engine.models.weights import RANDOM_STORAGES, RandomWeights
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import CONFIGS, LLAMA

EXPERTS = replace(CONFIGS["test-experts"], ffn=128)


def test_layers_in_fp8_stay_packed_and_the_head_beside_them_is_bf16() -> None:
    chosen = choose_storages(RandomWeights(LLAMA, storage=Storage.FP8_BLOCK), shard(LLAMA, 1))

    assert {chosen.of(layer, m) for layer in range(LLAMA.layers) for m in LAYER_MATRICES} == {
        Storage.FP8_BLOCK
    }
    assert chosen.of(0, Matrix.HEAD) is Storage.BF16
    assert chosen.half == "bf16"
    assert chosen.named("layers.1.w_down") is Storage.FP8_BLOCK
    assert chosen.named("embed") is Storage.BF16


def test_a_tied_head_in_q8_0_is_packed_with_operands_in_fp16() -> None:
    tied = replace(LLAMA, tied_head=True)
    chosen = choose_storages(RandomWeights(tied, storage=Storage.Q8_0), shard(tied, 1))

    assert chosen.named("embed") is Storage.Q8_0
    assert chosen.half == "f16"


def test_a_head_that_alone_is_packed_is_kept_in_sixteen_bits_as_prompts_then_go_by_tiles() -> None:
    """So ships SmolLM2's file: its layers are in 4 bits that no kernel here takes, its embedding in Q8_0."""

    def storage(name: str) -> Storage:
        return Storage.Q8_0 if name in ("embed", "head") else Storage.F16

    for config in (LLAMA, replace(LLAMA, tied_head=True)):
        chosen = choose_storages(RandomPacked(config, storage, 1), shard(config, 1))
        assert not plan(config, 132, chosen.storages).is_packed
        assert chosen.named("embed") is chosen.named("head") is Storage.F16


def test_what_the_kernels_do_not_unpack_is_kept_in_sixteen_bits() -> None:
    weights = RandomPacked(LLAMA, all_in(Storage.Q5_0), 1)

    assert choose_storages(weights, shard(LLAMA, 1)).of(0, Matrix.DOWN) is Storage.F16


def test_rows_of_several_formats_in_one_matrix_are_kept_in_sixteen_bits() -> None:
    weights = RandomPacked(LLAMA, lambda name: Storage.Q5_0 if name.endswith("wv") else Storage.Q8_0, 1)
    chosen = choose_storages(weights, shard(LLAMA, 1))

    assert chosen.of(0, Matrix.QKV) is Storage.F16
    assert chosen.of(0, Matrix.ATTN_OUT) is Storage.Q8_0


def of_experts(storage: Storage) -> Callable[[str], Storage]:
    return lambda name: storage if ".experts." in name else Storage.F16


def test_experts_stay_packed_beside_attention_and_a_router_in_sixteen_bits() -> None:
    weights = RandomPacked(EXPERTS, of_experts(Storage.MXFP4), 1)
    chosen = choose_storages(weights, shard(EXPERTS, 1))

    assert chosen.named("layers.1.experts.3.w_up") is Storage.MXFP4
    assert chosen.named("layers.1.experts.3.w_down") is Storage.MXFP4
    assert chosen.named("layers.1.router") is chosen.named("layers.1.wq") is Storage.F16


def test_experts_whose_columns_end_within_a_run_keep_their_downs_in_sixteen_bits() -> None:
    config = replace(EXPERTS, ffn=96)
    chosen = choose_storages(RandomPacked(config, of_experts(Storage.FP8_BLOCK), 1), shard(config, 1))

    assert chosen.named("layers.0.experts.0.w_gate") is Storage.FP8_BLOCK
    assert chosen.named("layers.0.experts.0.w_down") is Storage.BF16


def test_experts_of_several_formats_are_kept_in_sixteen_bits() -> None:
    def choose(name: str) -> Storage:
        return Storage.MXFP4 if ".experts." in name and "layers.0" in name else Storage.F16

    chosen = choose_storages(RandomPacked(EXPERTS, choose, 1), shard(EXPERTS, 1))

    assert chosen.named("layers.0.experts.0.w_gate") is Storage.F16


def test_lanes_are_kept_in_sixteen_bits() -> None:
    config = replace(LLAMA, lanes=Lanes(count=2), ffn=768)
    chosen = choose_storages(RandomPacked(config, all_in(Storage.Q8_0), 1), shard(config, 1))

    assert not any(storage.is_packed for layer in chosen.storages for storage in layer)


def test_a_matrix_whose_blocks_two_gpus_would_cut_is_kept_in_sixteen_bits() -> None:
    config = replace(LLAMA, ffn=192)
    chosen = choose_storages(RandomPacked(config, all_in(Storage.FP8_BLOCK), 1), shard(config, 2))

    assert chosen.of(0, Matrix.DOWN) is Storage.BF16
    assert chosen.of(0, Matrix.GATE_UP) is Storage.FP8_BLOCK


@pytest.mark.parametrize("slot_units", [10, 12, 16])
def test_slots_that_hold_no_turn_of_a_group_are_refused(slot_units: int) -> None:
    chosen = choose_storages(RandomPacked(LLAMA, all_in(Storage.FP8_BLOCK), 1), shard(LLAMA, 1))
    narrow = plan(LLAMA, 44, chosen.storages)
    assert HALF_TILES in {tiles for matrix in LAYER_MATRICES for tiles in narrow.group_sizes(matrix)}

    assert chunks_a_slot(slot_units, HALF_TILES, Storage.FP8_BLOCK) == 0
    with pytest.raises(ConfigError, match=r"slots of .* too small for its packed weights"):
        make_layout(narrow, chosen.half, Tuning(slot_units=slot_units))


@pytest.mark.slow
@pytest.mark.parametrize("storage", RANDOM_STORAGES)
@pytest.mark.parametrize("slot_units", [33, 48])
def test_tapes_of_packed_models_are_walked_without_gaps_and_take_the_bytes_of_the_format(
    storage: Storage, slot_units: int
) -> None:
    config = replace(load_preset("qwen3-8b").config, layers=2, windows=())
    made = plan(
        config, 132, choose_storages(RandomWeights(config, storage=storage), shard(config, 1)).storages
    )

    validate(made, slot_units)
    taken = sum(made.share_sizes(0, Matrix.GATE_UP))
    assert taken <= 1.01 * matrix_bytes(storage, 2 * config.ffn, config.hidden)


def test_every_tape_of_a_packed_model_has_the_length_that_its_plan_says() -> None:
    weights = RandomPacked(replace(LLAMA, layers=1, windows=()), all_in(Storage.Q8_0), 1)
    chosen = choose_storages(weights, shard(weights.config, 1))
    made = plan(weights.config, 5, chosen.storages)

    for core in range(made.cores):
        assert pack_core(made, weights, core).nbytes == made.tape_bytes(core)


def test_a_unit_of_fp8_is_two_pieces_as_the_tensor_cores_take_them() -> None:
    """Of each lane's eight columns the first four lie in one and the others in the other, row after row."""
    rows = np.arange(8 * 128, dtype=np.uint32).astype(np.uint8).reshape(8, 128)
    scales = np.ones((8, 1), np.float32)

    units = pack_group(Storage.FP8_BLOCK, rows, scales)[: 8 * 128].reshape(4, 2, 8, 16)

    for chunk, piece in np.ndindex(4, 2):
        columns = [32 * chunk + 8 * lane + 4 * piece + i for lane in range(4) for i in range(4)]
        assert np.array_equal(units[chunk, piece], rows[:, columns])


def test_a_word_of_mxfp4_gives_its_numbers_as_e5m2_by_shifts_and_masks() -> None:
    """Each number beside each other one, in all places."""
    one, other = (side.ravel().astype(np.uint8) for side in np.indices((16, 16)))
    codes = np.stack([np.roll(one if i % 2 else other, 7 * i) for i in range(8)], axis=1)
    words = mxfp4_words(codes)
    turned = (words << np.uint32(5) | words >> np.uint32(27)) ^ words << np.uint32(7)

    for i, four in enumerate((words, turned)):
        e5m2 = np.ascontiguousarray(four & np.uint32(0x8E8E8E8E)).view(np.uint8).reshape(-1, 4)
        found = (e5m2.astype(np.uint16) << 8).view(np.float16).astype(np.float32) * np.float32(2.0**14)
        assert np.array_equal(2.0 * found, FP4_LEVELS[codes[:, 4 * i : 4 * i + 4]])


def test_units_and_scales_fill_runs_that_bulk_copies_can_take() -> None:
    for storage in UNIT_FORMS:
        assert all(group_bytes(storage, tiles, 9) % 16 == 0 for tiles in range(1, 9))

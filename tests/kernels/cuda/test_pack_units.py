"""The kernel that packs units, run on the CPU, leaves the tapes that tape.py defines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda.contract import PackJob, PackTensor, UnitJob, UnitTensor
from engine.backends.cuda.expert_region import ExpertRegion, expert_tensors, pack_experts
from engine.backends.cuda.memory import share_table, tile_shares
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.storages import choose_storages, shard_weights
from engine.backends.cuda.tape import Matrix, Plan, columns, pack_core, plan, row_sources, tensors
from engine.backends.cuda.units import UNIT_FORMS
from engine.backends.cuda.unpacked import sixteen_bits
from engine.models.config import Experts, ModelConfig
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import RANDOM_STORAGES, DType, RandomWeights, Weights, packed_of
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import LLAMA
from tests.kernels.cuda.emulation.launch import PartOf
from tests.kernels.cuda.emulation.packer import EmulatedPacker

CORES = 5
CONFIG: ModelConfig = replace(
    LLAMA,
    name="packed",
    hidden=160,
    layers=1,
    heads=6,
    kv_heads=2,
    head_dim=32,
    ffn=416,
    vocab=330,
    windows=(),
)


@pytest.fixture(scope="module")
def packer(tmp_path_factory: pytest.TempPathFactory) -> EmulatedPacker:
    return EmulatedPacker(tmp_path_factory.mktemp("packer"))


def packed_tapes(
    packer: EmulatedPacker, made: Plan, weights: Weights, laid: Plan | None = None, half: DType = "f16"
) -> NDArray[np.uint8]:
    """All cores' tapes one after the other, as `laid` has them; what is not packed in `made` stays zero."""
    laid = laid or made
    begins = laid.tape_offsets()
    tape = np.zeros(int(begins[-1]), np.uint8)
    for layer, matrix in made.steps():
        storage = made.storage(layer, matrix)
        if not storage.is_packed:
            continue
        starts = [laid.matrix_offset(core, layer, matrix) for core in range(made.cores)]
        where = (
            row_sources(made.config, matrix),
            np.ascontiguousarray(share_table(made)[:, matrix]),
            begins[:-1] + np.array(starts, np.uint64),
        )
        fill = packer.pack if laid is made else packer.unpack
        job = UnitJob(columns=columns(made.config, matrix), bf16=half == "bf16", storage=storage)
        pack_matrix(fill, job, weights, tensors(made.config, layer, matrix), where, tape)
    return tape


def random_tensor(
    job: PackJob | UnitJob, weights: RandomWeights, sharding: Sharding, rank: int, name: str
) -> PackTensor | UnitTensor:
    """A GPU's part of a tensor, which the job makes itself."""
    key, scale, _ = weights.recipe(name)
    part = astuple(sharding.region(name, rank, job.columns))
    if isinstance(job, UnitJob):
        return UnitTensor(0, 0, *part, key, weights.packed_scale(name))
    return PackTensor(0, *part, key, scale)


def pack_matrix(
    fill: Callable[[Any, int], None],
    job: PackJob | UnitJob,
    weights: Weights,
    names: Sequence[str],
    where: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    to: NDArray[np.uint8],
) -> None:
    """`where` are sources, shares and offsets of the job."""
    held: list[NDArray[Any]] = []
    job.sources, job.shares, job.offsets = (array.ctypes.data for array in where)
    job.tape = to.ctypes.data
    for i, name in enumerate(names):
        if isinstance(weights, RandomWeights):
            job.tensors[i] = random_tensor(job, weights, shard(weights.config, 1), 0, name)
            continue
        packed = packed_of(weights, name)
        held.append(np.ascontiguousarray(packed.rows))
        job.tensors[i] = UnitTensor(held[-1].ctypes.data)
        if packed.scales is not None:
            of_rows = np.repeat(packed.scales, FP8_BLOCK_SIDE, axis=-2)[..., : packed.rows.shape[-2], :]
            held.append(np.ascontiguousarray(of_rows))
            job.tensors[i].scales = held[-1].ctypes.data
    fill(job, len(where[1]))


@pytest.mark.parametrize(("hidden", "cores"), [(48, 4), (280, 10), (80, 4)])
def test_shares_of_halves_lie_on_the_tapes_as_they_should(
    hidden: int, cores: int, packer: EmulatedPacker
) -> None:
    """Of the last shape they are whole tiles."""
    config = replace(CONFIG, hidden=hidden)
    weights, made = RandomWeights(config, 3), plan(config, cores, halves=True)
    begins = made.tape_offsets()
    tape = np.zeros(int(begins[-1]), np.uint8)
    for matrix in (Matrix.ATTN_OUT, Matrix.DOWN):
        offsets = begins[:-1] + made.matrix_offsets(0, matrix)
        job = PackJob(columns=columns(config, matrix), halves=made.halves(matrix))
        where = row_sources(config, matrix), np.ascontiguousarray(share_table(made)[:, matrix]), offsets
        pack_matrix(packer.pack, job, weights, tensors(config, 0, matrix), where, tape)
        for core in range(cores):
            at, size = made.matrix_offset(core, 0, matrix), made.share_sizes(0, matrix)[core]
            found = tape[int(begins[core]) + at :][:size]
            assert np.array_equal(found, pack_core(made, weights, core).view(np.uint8)[at : at + size])


class WithNan(RandomPacked):
    """Of every row the first number is no number."""

    def packed(self, name: str) -> Packed:
        packed = super().packed(name)
        packed.rows[:, 0] = 0x7F
        return packed


def test_what_is_no_number_in_a_file_is_none_on_the_tape(packer: EmulatedPacker) -> None:
    weights = WithNan(CONFIG, all_in(Storage.FP8_BLOCK), 3)
    made = plan(CONFIG, 1, choose_storages(weights, shard(CONFIG, 1)).storages)
    found = packed_tapes(packer, made, weights)
    wanted = pack_core(made, weights, 0, "bf16").view(np.uint8)
    size = made.share_sizes(0, Matrix.QKV)[0]
    at = made.matrix_offset(0, 0, Matrix.QKV)
    assert np.array_equal(found[at : at + size], wanted[at : at + size])


KINDS = [(s, "of files") for s in UNIT_FORMS] + [(s, "random") for s in RANDOM_STORAGES]


def weights_of(storage: Storage, kind: str, config: ModelConfig = CONFIG) -> Weights:
    """K-quants have blocks of 256 columns."""
    if storage in (Storage.Q4_K, Storage.Q6_K):
        config = replace(config, hidden=256, heads=8, ffn=512)
    if kind == "random":
        return RandomWeights(config, 3, storage=storage)
    return RandomPacked(config, all_in(storage), 3)


def require_as_defined(
    found: NDArray[np.uint8], made: Plan, laid: Plan, weights: Weights, half: DType
) -> None:
    """Of all matrices that are packed in `made`, the bytes are those that `laid` defines."""
    begins = laid.tape_offsets()
    compared = 0
    for core in range(CORES):
        wanted = pack_core(laid, weights, core, half).view(np.uint8)
        for layer, matrix in made.steps():
            if made.storage(layer, matrix).is_packed:
                at, size = laid.matrix_offset(core, layer, matrix), laid.share_sizes(layer, matrix)[core]
                begin = int(begins[core]) + at
                assert np.array_equal(found[begin : begin + size], wanted[at : at + size]), (core, matrix)
                compared += size
    assert compared


@pytest.mark.parametrize(("storage", "kind"), KINDS)
def test_unpacked_they_are_the_tapes_of_the_same_weights_in_16_bits(
    packer: EmulatedPacker, storage: Storage, kind: str
) -> None:
    weights = weights_of(storage, kind)
    chosen = choose_storages(weights, shard(weights.config, 1))
    made = plan(weights.config, CORES, chosen.storages)
    plain = sixteen_bits(made)
    found = packed_tapes(packer, made, weights, plain, chosen.half)
    require_as_defined(found, made, plain, weights, chosen.half)


@pytest.mark.parametrize(("storage", "kind"), KINDS)
def test_the_packing_kernel_leaves_the_tapes_that_are_defined(
    packer: EmulatedPacker, storage: Storage, kind: str
) -> None:
    weights = weights_of(storage, kind)
    chosen = choose_storages(weights, shard(weights.config, 1))
    assert chosen.of(0, Matrix.DOWN) is storage
    made = plan(weights.config, CORES, chosen.storages)
    found = packed_tapes(packer, made, weights)
    require_as_defined(found, made, made, weights, chosen.half)


@pytest.mark.parametrize("storage", RANDOM_STORAGES)
@pytest.mark.parametrize("kind", ["of files", "random"])
def test_the_packing_kernel_leaves_experts_where_they_are_defined_to_lie(
    packer: EmulatedPacker, storage: Any, kind: str
) -> None:
    config = replace(CONFIG, ffn=128, experts=Experts(count=3, chosen=2))
    weights = weights_of(storage, kind, config)
    region = ExpertRegion(config, storage, storage)
    found = np.zeros(region.size, np.uint8)
    for layer, expert, matrix in region.matrices():
        shares, offsets = tile_shares(region, matrix)
        where = region.sources(matrix), shares, offsets + np.uint64(region.offset(layer, expert, matrix))
        names = expert_tensors(config, layer, expert, matrix)
        job = UnitJob(columns=columns(region.one, matrix), storage=storage)
        pack_matrix(packer.pack, job, weights, names, where, found)
    assert np.array_equal(found, pack_experts(region, weights))


@pytest.mark.parametrize("storage", [None, *RANDOM_STORAGES])
def test_random_experts_whose_columns_are_padded_are_those_cut_from_arrays(
    packer: EmulatedPacker, storage: Storage | None
) -> None:
    """Made where they are needed, of a GPU's part only what the model has; the rest is zeros."""
    ffn = 384 if storage is Storage.FP8_BLOCK else 352
    config = replace(CONFIG, heads=8, kv_heads=8, ffn=ffn, experts=Experts(count=3, chosen=2))
    weights = RandomWeights(config, 3, storage=storage)
    sharding = shard_weights(weights, 8)
    chosen = choose_storages(weights, sharding)
    region = ExpertRegion.of(plan(sharding.part, CORES, chosen.storages))
    assert region.storage(Matrix.DOWN) is (storage or Storage.F16)
    unwritten = 0 if storage is Storage.FP8_BLOCK else 0xAA  # nobody writes what makes runs of FP8 even
    for rank in range(8):
        found = np.full(region.size, unwritten, np.uint8)
        for layer, expert, matrix in region.matrices():
            names = expert_tensors(config, layer, expert, matrix)
            pack_part(
                packer,
                region,
                sharding,
                rank,
                weights,
                names,
                matrix,
                found[region.offset(layer, expert, matrix) :],
            )
        assert np.array_equal(found, pack_experts(region, PartOf(weights, sharding, rank), chosen.half)), rank


def pack_part(
    packer: EmulatedPacker,
    region: ExpertRegion,
    sharding: Sharding,
    rank: int,
    weights: RandomWeights,
    names: Sequence[str],
    matrix: Matrix,
    to: NDArray[np.uint8],
) -> None:
    """A GPU's part of one expert's matrix, at the begin of `to`."""
    width, storage = columns(region.one, matrix), region.storage(matrix)
    bf16 = weights.native == "bf16"
    job = (
        UnitJob(columns=width, storage=storage, bf16=bf16)
        if storage.is_packed
        else PackJob(columns=width, bf16=bf16)
    )
    for i, name in enumerate(names):
        job.tensors[i] = random_tensor(job, weights, sharding, rank, name)
    sources, (shares, offsets) = region.sources(matrix), tile_shares(region, matrix)
    job.sources, job.shares, job.offsets = (array.ctypes.data for array in (sources, shares, offsets))
    job.tape = to.ctypes.data
    packer.pack(job, len(shares))

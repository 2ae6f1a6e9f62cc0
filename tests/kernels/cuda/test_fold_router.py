"""The kernels that fold the router through attention's output, run on the CPU, and what they are for."""

from __future__ import annotations

from dataclasses import astuple, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.cuda.contract import FoldJob, PackJob, PackTensor, UnitJob, UnitTensor
from engine.backends.cuda.folded_router import fold_router, folded_layer_bytes, router_names
from engine.backends.cuda.sharding import Sharding, shard
from engine.backends.cuda.storages import choose_storages
from engine.models.config import Experts, ModelConfig
from engine.models.storage import FP8_BLOCK_SIDE, Storage
from engine.models.weights import RandomWeights, Weights, packed_of
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import LLAMA, Bf16Weights, RoutedWeights, StoredWeights
from tests.kernels.cuda.emulation.packer import EmulatedPacker

CONFIG: ModelConfig = replace(
    LLAMA,
    name="folded",
    family="qwen3_moe",
    qk_norm=True,
    hidden=160,
    layers=1,
    heads=10,
    kv_heads=2,
    head_dim=32,
    ffn=64,
    vocab=330,
    windows=(),
    experts=Experts(count=11, chosen=2),
)
ALL = Storage.FP8_BLOCK, Storage.Q8_0, Storage.MXFP4


def all_but_experts(storage: Storage) -> Any:
    return lambda name: Storage.F16 if ".experts." in name else all_in(storage)(name)


WEIGHTS: dict[str, Weights] = {
    "random": RandomWeights(CONFIG, 3),
    "of files": StoredWeights(CONFIG, 3),
    "of files in BF16": Bf16Weights(CONFIG, 3),
    **{f"random, {s.name}": RandomWeights(CONFIG, 3, storage=s) for s in ALL},
    **{f"of files, {s.name}": RandomPacked(CONFIG, all_but_experts(s), 3) for s in ALL},
}


@pytest.fixture(scope="module")
def packer(tmp_path_factory: pytest.TempPathFactory) -> EmulatedPacker:
    return EmulatedPacker(tmp_path_factory.mktemp("packer"))


def folded(packer: EmulatedPacker, weights: Weights, sharding: Sharding, rank: int) -> NDArray[np.float32]:
    """By the kernel."""
    chosen, columns = choose_storages(weights, sharding), sharding.part.q_dim
    held: list[NDArray[Any]] = []

    def put(values: NDArray[Any]) -> int:
        held.append(np.ascontiguousarray(values))
        return int(held[-1].ctypes.data)

    name = "layers.0.wo"
    region, bf16 = sharding.region(name, rank, columns), chosen.half == "bf16"
    job: PackJob | UnitJob
    tensor: PackTensor | UnitTensor
    if chosen.storages[0][1].is_packed:
        job = UnitJob(columns=columns, bf16=bf16, storage=chosen.storages[0][1])
        if isinstance(weights, RandomWeights):
            key = weights.recipe(name)[0]
            tensor = UnitTensor(0, 0, *astuple(region), key, weights.packed_scale(name))
        else:
            packed = packed_of(weights, name)
            tensor = UnitTensor(put(sharding.slice_packed(name, rank, packed)))
            if packed.scales is not None:
                of_rows = np.repeat(packed.scales, FP8_BLOCK_SIDE, axis=-2)[..., : packed.rows.shape[-2], :]
                tensor.scales = put(sharding.slice(name, rank, of_rows, columns=FP8_BLOCK_SIDE))
    else:
        job = PackJob(columns=columns, bf16=bf16)
        if isinstance(weights, RandomWeights):
            key, scale, _ = weights.recipe(name)
            tensor = PackTensor(0, *astuple(region), key, scale)
        else:
            tensor = PackTensor(put(sharding.slice(name, rank, weights.get(name, chosen.half))))
    job.tensors[0] = tensor
    router, norm = (put(weights.get(each, chosen.half)) for each in router_names(0))
    count = CONFIG.experts.count if CONFIG.experts else 0
    to = np.full((count, columns), np.nan, np.float32)
    fold = FoldJob(
        router=router, norm=norm, to=put(to), experts=count, hidden=CONFIG.hidden,
        columns=columns, bf16=bf16,
    )  # fmt: skip
    packer.fold(job, fold)
    return held[-1]


@pytest.mark.parametrize("kind", WEIGHTS)
def test_the_kernel_leaves_what_the_definition_says(packer: EmulatedPacker, kind: str) -> None:
    weights, sharding = WEIGHTS[kind], shard(CONFIG, 1)
    found = folded(packer, weights, sharding, 0)
    wanted = fold_router(weights, choose_storages(weights, sharding), sharding, 0, 0)
    assert found.nbytes == folded_layer_bytes(CONFIG)
    np.testing.assert_allclose(found, wanted, rtol=2e-7, atol=1e-9)


@pytest.mark.parametrize("kind", ["random", "of files"])
def test_each_gpu_has_its_own_heads(packer: EmulatedPacker, kind: str) -> None:
    weights, two = WEIGHTS[kind], shard(CONFIG, 2)
    whole = folded(packer, weights, shard(CONFIG, 1), 0)
    parts = [folded(packer, weights, two, rank) for rank in range(2)]
    assert np.array_equal(np.concatenate(parts, axis=1), whole)


def test_equal_rows_of_the_router_stay_equal(packer: EmulatedPacker) -> None:
    weights = RoutedWeights(CONFIG, 3, [0.5] * 11)
    found = folded(packer, weights, shard(CONFIG, 1), 0)
    assert np.array_equal(found, np.repeat(found[:1], 11, axis=0)) and found.any()


def test_scores_by_way_of_the_heads_are_those_of_the_stream_after_attention() -> None:
    """As exact as FP32: nearer to exact ones than the same sums over the stream in FP32."""
    weights, sharding = WEIGHTS["random"], shard(CONFIG, 1)
    rng = np.random.default_rng(7)
    before, heads = (rng.standard_normal(n).astype(np.float32) for n in (CONFIG.hidden, CONFIG.q_dim))
    router, norm = (weights.get(name) for name in router_names(0))
    wo = weights.get("layers.0.wo")[0]
    exact = (router * norm).astype(np.float64) @ (before + wo.astype(np.float64) @ heads)

    found = (router * norm) @ before
    found += fold_router(weights, choose_storages(weights, sharding), sharding, 0, 0) @ heads

    np.testing.assert_allclose(found, exact, rtol=0, atol=3e-7 * float(np.linalg.norm(exact)))

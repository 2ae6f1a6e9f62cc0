"""Several requests in a launch with packed weights: each leaves the tokens, keys and values that it leaves
alone, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.base import Job
from engine.backends.cuda.constants import Tuning
from engine.models.config import ModelConfig
from engine.models.storage import Storage
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.kernels.cuda.emulation.scheduled import EmulatedBackend
from tests.kernels.cuda.test_packed_emulation import CONFIGS
from tests.kernels.cuda.test_several import SAMPLINGS, check, follow, prompt
from tests.nightly import at_night

FP8, MXFP4, K_QUANTS = (CONFIGS[s] for s in (Storage.FP8_BLOCK, Storage.MXFP4, Storage.Q4_K))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("several-packed")


def of_one_layer(config: ModelConfig, hidden: int, ffn: int) -> ModelConfig:
    return replace(config, layers=1, windows=(0,), hidden=hidden, ffn=ffn)


@pytest.mark.parametrize(
    ("storage", "rows"),
    [
        (Storage.FP8_BLOCK, 4),
        at_night(Storage.FP8_BLOCK, 2),
        at_night(Storage.FP8_BLOCK, 8),
        at_night(Storage.Q4_K, 2),
        at_night(Storage.Q6_K, 4),
        at_night(Storage.Q8_0, 8),
        at_night(Storage.MXFP4, 2),
    ],
)
def test_each_leaves_what_it_leaves_alone(storage: Storage, rows: int, folder: Path) -> None:
    check(RandomPacked(CONFIGS[storage], all_in(storage), 3), rows, 2, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("storage", [Storage.Q8_0, Storage.MXFP4, Storage.Q4_K])
def test_each_leaves_on_two_gpus_what_it_leaves_alone_there(storage: Storage, folder: Path) -> None:
    config = replace(CONFIGS[storage], hidden=256, heads=8, kv_heads=2, ffn=512)
    weights = RandomPacked(config, all_in(storage), 3)
    together = check(weights, 2, 2, folder, ranks=2)
    assert together.gpu.chosen.named("layers.0.w_down") is storage


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("storage", "config"),
    [
        (Storage.FP8_BLOCK, of_one_layer(FP8, 160, 2184)),
        (Storage.Q8_0, of_one_layer(MXFP4, 2112, 288)),
        (Storage.MXFP4, of_one_layer(MXFP4, 96, 2208)),
        (Storage.Q4_K, of_one_layer(K_QUANTS, 256, 2304)),
        (Storage.Q6_K, of_one_layer(K_QUANTS, 2304, 256)),
    ],
)
def test_vectors_of_eight_come_in_windows(storage: Storage, config: ModelConfig, folder: Path) -> None:
    """Of 2,048 columns."""
    check(RandomPacked(config, all_in(storage), 3), 8, 3, folder)


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "cores"), [(2, 5), (4, 4), (8, 3), (8, 7)])
def test_warpgroups_take_a_chunk_at_a_time_or_several_of_few_tiles(
    rows: int, cores: int, folder: Path
) -> None:
    """Attention's output has 12 tiles: 2 or 3 on a core, 3, 4, and 1 or 2."""
    check(RandomPacked(MXFP4, all_in(Storage.MXFP4), 3), rows, cores, folder)


@pytest.mark.parametrize(("rows", "cores"), [(2, 5), at_night(4, 4), at_night(8, 3), at_night(8, 7)])
def test_runs_of_fp8_are_multiplied_side_by_side_or_one_after_the_other(
    rows: int, cores: int, folder: Path
) -> None:
    """Attention's output has 20 tiles: 4 on a core, 5, 6 or 7, and 2 or 3; `down` has ten runs."""
    config = of_one_layer(FP8, 160, 1160)
    check(RandomPacked(config, all_in(Storage.FP8_BLOCK), 3), rows, cores, folder)


@pytest.mark.nightly
def test_windows_of_eight_cut_slots_of_few_tiles(folder: Path) -> None:
    """`down` has four tiles on a core, and slots of six runs in windows of sixteen."""
    config = of_one_layer(FP8, 160, 2184)
    check(RandomPacked(config, all_in(Storage.FP8_BLOCK), 3), 8, 5, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [2, 8])
def test_one_tile_has_more_runs_in_a_slot_than_are_added_up_apart(rows: int, folder: Path) -> None:
    """Attention's output and `down` have a tile on each core; `down` has 18 runs, of which 16 are apart."""
    config = of_one_layer(FP8, 160, 2304)
    check(RandomPacked(config, all_in(Storage.FP8_BLOCK), 3), rows, 20, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("slot_units", [24, 33])
def test_slots_of_fp8_are_those_of_one_request(slot_units: int, folder: Path) -> None:
    """Of one run of eight tiles, or a few of them."""
    config, tuning = of_one_layer(FP8, 160, 1160), Tuning(slot_units=slot_units)
    rows = check(RandomPacked(config, all_in(Storage.FP8_BLOCK), 3), 2, 5, folder, tuning)
    assert (rows.gpu.layout.alone_slot_units, rows.gpu.layout.slot_units) == (slot_units, slot_units)


@pytest.mark.nightly
def test_sizes_of_runs_and_of_chunks_go_side_by_side(folder: Path) -> None:
    """Attention in FP8, the MLP in MXFP4."""
    config = of_one_layer(MXFP4, 160, 1152)
    weights = RandomPacked(config, lambda name: Storage.MXFP4 if ".w_" in name else Storage.FP8_BLOCK, 3)
    check(weights, 4, 5, folder)


@pytest.mark.nightly
def test_a_prompt_is_read_beside_others_as_it_is_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("PIECE", "SHARES_PIECE"):
        monkeypatch.setattr(f"engine.backends.cuda.reading.{size}", 4)
    backend = EmulatedBackend(folder, RandomPacked(MXFP4, all_in(Storage.MXFP4), 3), 2, 2, filters=True)
    scheduler = backend.scheduler
    jobs = [Job(tuple(prompt(1, 3)), 5, SAMPLINGS[1]), Job(tuple(prompt(2, 9)), 2)]
    expected = [follow(scheduler.join(job)) for job in jobs]

    rows = [scheduler.join(job) for job in jobs]

    assert [follow(row) for row in rows] == expected
    assert max(backend.launches) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("storage", [Storage.Q4_K, Storage.Q6_K])
def test_slots_of_another_size_than_alone_leave_the_same_sums(storage: Storage, folder: Path) -> None:
    """Of K-quants, which are added up in parts of a slot: here of 32 chunks, more than are in one alone."""
    config = of_one_layer(K_QUANTS, 256, 1024)
    rows = check(RandomPacked(config, all_in(storage), 3), 2, 8, folder, Tuning(slot_units=32))
    assert (rows.gpu.layout.alone_slot_units, rows.gpu.layout.slot_units) == (32, 48)


def as_files_mix_them(name: str) -> Storage:
    """K-quants, with attention in 16 bits."""
    if "w_down" in name:
        return Storage.Q6_K if name.startswith("layers.0.") else Storage.Q4_K
    return Storage.Q4_K if ".w_" in name else Storage.F16


def mlp_in_fp8(name: str) -> Storage:
    return Storage.FP8_BLOCK if ".w_" in name else Storage.F16


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "storage_of"), [(K_QUANTS, as_files_mix_them), (FP8, mlp_in_fp8)], ids=["K-quants", "FP8"]
)
def test_matrices_of_several_formats_take_their_own_vectors(
    config: ModelConfig, storage_of: Callable[[str], Storage], folder: Path
) -> None:
    check(RandomPacked(config, storage_of, 3), 4, 2, folder)

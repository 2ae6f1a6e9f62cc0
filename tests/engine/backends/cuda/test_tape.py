"""The plan that kernels walk, and the packer that defines what a tape holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.backends.cuda import tape
from engine.backends.cuda.tape import (
    CHUNK_COLUMNS,
    TILE_ROWS,
    Matrix,
    Plan,
    chunks,
    columns,
    pack_core,
    part_tiles,
    plan,
    row_sources,
    tensors,
    validate,
)
from engine.backends.cuda.units import group_bytes
from engine.errors import ConfigError
from engine.models.config import HeadKind, Lanes, ModelConfig
from engine.models.presets import load_preset, preset_names
from engine.models.rope import Rope, RopeLayout
from engine.models.storage import Storage
from engine.models.weights import RandomWeights
from tests.nightly import at_night

H200_SMS = 132


@st.composite
def shapes(draw: st.DrawFn) -> ModelConfig:
    lanes = draw(st.sampled_from([1, 2, 3, 4]))
    kv_heads = lanes * draw(st.integers(1, 2))
    head = draw(st.sampled_from(list(HeadKind)))
    return ModelConfig(
        name="drawn",
        hidden=8 * draw(st.integers(1, 12)),
        layers=draw(st.integers(1, 4)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        head_dim=8 * draw(st.integers(1, 5)),
        ffn=4 * lanes * draw(st.integers(1, 20)),
        vocab=lanes * draw(st.integers(3, 90)),
        context=64,
        rope=Rope(layout=draw(st.sampled_from(list(RopeLayout)))),
        lanes=Lanes(count=lanes, delay=draw(st.integers(0, 1)), early_comm=draw(st.booleans()), head=head),
    )


def unpacked(
    made: Plan, tapes: Sequence[np.ndarray], layer: int, matrix: Matrix
) -> dict[tuple[int, int], np.ndarray]:
    """Every row of a matrix as all cores' tapes hold it: (tensor, row) to columns."""
    config = made.config
    found: dict[tuple[int, int], np.ndarray] = {}
    sources = row_sources(config, matrix)
    for core, packed in enumerate(tapes):
        start = made.matrix_offset(core, layer, matrix)
        for group in made.groups(core, matrix):
            at = (start + group.offset) // 2
            numbers = range(group.rows.start, group.rows.stop)
            size = len(numbers) * chunks(config, matrix) * CHUNK_COLUMNS
            pieces = packed[at : at + size].reshape(-1, len(numbers), 4, 8)
            for i, number in enumerate(numbers):
                row = pieces[:, i, np.arange(4) ^ number % TILE_ROWS // 2].ravel()
                tensor, source = sources[number].tolist()
                if tensor < 0:
                    assert not row.any()
                    continue
                assert (tensor, source) not in found
                assert not row[columns(config, matrix) :].any()
                found[tensor, source] = row[: columns(config, matrix)]
    return found


@pytest.mark.slow
@given(shapes(), st.integers(1, 9), st.booleans())
@settings(max_examples=25, deadline=None)
def test_every_row_of_every_tensor_is_on_one_tape_once(
    config: ModelConfig, cores_a_lane: int, equal: bool
) -> None:
    halves = config.lanes.count == 1
    made = plan(config, config.lanes.count * cores_a_lane, equal=equal, halves=halves)
    validate(made, slot_units=32)
    weights = RandomWeights(config, 1)
    tapes = [pack_core(made, weights, core) for core in range(made.cores)]
    for matrix in Matrix:
        layer = config.layers - 1 if matrix is not Matrix.HEAD else 0
        found = unpacked(made, tapes, layer, matrix)
        for tensor, name in enumerate(tensors(config, layer, matrix)):
            values = weights.get(name, "f16").view(np.uint16).reshape(-1, columns(config, matrix))
            assert all(np.array_equal(found[tensor, row], values[row]) for row in range(len(values)))
        assert len(found) == sum(
            weights.get(name).size // columns(config, matrix) for name in tensors(config, layer, matrix)
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("slot_units", [32, *(at_night(n) for n in (16, 64))])
def test_presets_have_a_valid_plan_on_an_h200(name: str, slot_units: int) -> None:
    validate(plan(load_preset(name).config, H200_SMS), slot_units)


@given(shapes(), st.integers(1, 9))
def test_equal_shares_of_a_layer_are_the_largest_or_none(config: ModelConfig, cores_a_lane: int) -> None:
    cores = config.lanes.count * cores_a_lane
    made, other = plan(config, cores, equal=True), plan(config, cores)
    for matrix in Matrix:
        tiles = [shares[matrix].tiles for shares in made.shares]
        before = [shares[matrix].tiles for shares in other.shares]
        assert max(tiles) == max(before)
        if matrix is not Matrix.HEAD and max(tiles) > 1 and part_tiles(config, matrix) % max(tiles) == 0:
            assert set(tiles) <= {0, max(tiles)}
        else:
            assert tiles == before


@pytest.mark.parametrize(("equal", "first"), [(True, 128), (False, H200_SMS)])
def test_the_first_core_without_tiles_is_found(equal: bool, first: int) -> None:
    made = plan(load_preset("qwen3-30b-a3b").config, H200_SMS, equal=equal)
    assert [made.first_without_tiles(matrix) for matrix in Matrix] == [first] * 4 + [H200_SMS]


def test_the_first_core_without_tiles_may_have_others_behind_it() -> None:
    made = plan(load_preset("tiny-llama").config, H200_SMS)
    tiles = [shares[Matrix.QKV].tiles for shares in made.shares]
    assert tiles[made.first_without_tiles(Matrix.QKV)] == 0 < max(tiles)


def test_a_plan_that_forgets_a_tile_is_refused() -> None:
    made = plan(load_preset("tiny-llama").config, 8)
    first = made.shares[0]
    shorter = (replace(first[0], tiles=first[0].tiles - 1), *first[1:])
    broken = replace(made, shares=(shorter, *made.shares[1:]))
    with pytest.raises(ConfigError, match=r"tile \d+ of QKV is read 0 times"):
        validate(broken, 32)


@pytest.mark.parametrize("which", [min, max])
def test_cores_with_as_many_tiles_that_have_a_gap_are_refused(which: Callable[[list[int]], int]) -> None:
    """Some cores have a tile more of the head than others; of each kind one is walked."""

    class Shifted(Plan):
        def matrix_offset(self, core: int, layer: int, matrix: Matrix) -> int:
            has_gap = self.shares[core][Matrix.HEAD].tiles == odd and matrix is Matrix.GATE_UP
            return super().matrix_offset(core, layer, matrix) + 16 * has_gap

    made = plan(load_preset("tiny-llama").config, 7)
    tiles = [shares[Matrix.HEAD].tiles for shares in made.shares]
    odd = which(tiles)
    assert min(tiles) < max(tiles)
    with pytest.raises(ConfigError, match="has a slot of"):
        validate(Shifted(made.config, made.cores, made.cores_a_lane, made.shares), 32)


def test_where_matrices_begin_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's memory is filled by it, matrix after matrix, each time a worker starts."""
    asked: list[int] = []

    def counted(storage: Storage, tiles: int, chunks: int) -> int:
        asked.append(tiles)
        return group_bytes(storage, tiles, chunks)

    monkeypatch.setattr(tape, "group_bytes", counted)
    tape._tiles_bytes.cache_clear()
    made = plan(load_preset("smollm2-135m").config, H200_SMS)
    for layer, matrix in made.steps():
        made.matrix_offsets(layer, matrix)
    assert 0 < len(asked) < H200_SMS


def test_the_two_rows_of_a_rotation_lie_side_by_side() -> None:
    config = load_preset("tiny-llama").config
    packed = row_sources(config, Matrix.QKV)
    half = config.head_dim // 2
    pairs = packed[: config.q_dim + config.kv_dim, 1].reshape(-1, 2)
    assert (pairs[:, 1] - pairs[:, 0] == half).all()


def test_gate_and_up_of_a_column_lie_side_by_side() -> None:
    pairs = row_sources(load_preset("tiny-laneformer").config, Matrix.GATE_UP).reshape(-1, 2, 2)
    assert (pairs[:, 0, 0] == 0).all() and (pairs[:, 1, 0] == 1).all()
    assert (pairs[:, 0, 1] == pairs[:, 1, 1]).all()


@pytest.mark.parametrize(
    ("hidden", "cores", "halves"),
    [(48, 4, 3), (1536, 132, 3), (3584, 132, 7), (64, 4, 0), (4096, 132, 0), (56, 4, 0)],
)
def test_cores_have_halves_of_tiles_where_each_share_is_the_same_odd_number(
    hidden: int, cores: int, halves: int
) -> None:
    made = plan(replace(load_preset("llama-3.2-1b").config, hidden=hidden), cores, halves=True)
    assert {made.halves(matrix) for matrix in (Matrix.ATTN_OUT, Matrix.DOWN)} == {halves}
    assert {made.halves(matrix) for matrix in (Matrix.QKV, Matrix.GATE_UP, Matrix.HEAD)} == {0}


def test_more_lanes_than_cores_are_refused() -> None:
    with pytest.raises(ConfigError, match="8 lanes for 7 cores"):
        plan(load_preset("tiny-laneformer").config, 7)


def test_the_larger_shares_of_a_matrix_differ_by_one_tile() -> None:
    made = plan(load_preset("llama-3.2-1b").config, H200_SMS)
    for matrix in Matrix:
        tiles = [core[matrix].tiles for core in made.shares]
        assert max(tiles) - min(tiles) <= 1

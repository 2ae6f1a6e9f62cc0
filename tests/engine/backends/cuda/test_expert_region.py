"""Where experts lie, and that each of their rows lies there once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion, expert_tensors, pack_experts
from engine.backends.cuda.flight import flight_of
from engine.backends.cuda.phases import bytes_a_phase
from engine.backends.cuda.tape import Matrix, chunks, columns, plan, swap_pieces, validate
from engine.errors import ConfigError
from engine.models.config import Experts, ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.storage import Storage, matrix_bytes
from engine.models.weights import RandomWeights

TINY = ModelConfig(
    name="tiny-experts",
    family="qwen3_moe",
    hidden=40,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=16,
    ffn=64,
    vocab=64,
    context=96,
    experts=Experts(count=5, chosen=2),
)


@pytest.mark.parametrize("matrix", EXPERT_MATRICES)
def test_a_packed_expert_is_read_back_tile_by_tile(matrix: Matrix) -> None:
    region, weights = ExpertRegion(TINY), RandomWeights(TINY, 1)
    packed = pack_experts(region, weights).view(np.uint16)
    layer, expert = 1, 3
    width = columns(region.one, matrix)
    first = region.offset(layer, expert, matrix) // 2
    size = region.matrix_bytes(matrix) // 2
    units = packed[first : first + size].reshape(-1, chunks(region.one, matrix), 8, 32)
    units = swap_pieces(units)  # once more puts the pieces back
    rows = units.transpose(0, 2, 1, 3).reshape(-1, units.shape[1] * 32)
    values = [
        weights.get(name, "f16").view(np.uint16).reshape(-1, width)
        for name in expert_tensors(TINY, layer, expert, matrix)
    ]
    for row, (tensor, source) in zip(rows, region.sources(matrix).tolist(), strict=True):
        assert np.array_equal(row[:width], values[tensor][source])
        assert not row[width:].any()


def test_experts_take_the_bytes_of_their_tensors() -> None:
    config = load_preset("qwen3-30b-a3b").config
    of_experts = sum(int(np.prod(shape)) for name, shape in tensor_shapes(config) if ".experts." in name)

    assert ExpertRegion(config).size == 2 * of_experts
    assert ExpertRegion(config).met_bytes == 2 * of_experts * 8 // 128
    assert ExpertRegion(load_preset("llama-3.2-1b").config).size == 0


def test_what_one_token_meets_is_shared_out_and_nothing_of_it_is_on_a_tape() -> None:
    config = load_preset("qwen3-30b-a3b").config
    made = plan(config, 132)
    validate(made, 48)

    shares = [core[Matrix.GATE_UP].tiles for core in made.shares]
    assert sum(shares) == 8 * 2 * 768 // 8
    assert max(shares) - min(shares) == 1
    assert {matrix for _, matrix in made.steps()} == {Matrix.QKV, Matrix.ATTN_OUT, Matrix.HEAD}


def test_experts_count_for_how_long_a_phase_is_and_how_much_is_asked_for_at_once() -> None:
    config = replace(load_preset("qwen3-30b-a3b").config, heads=4, vocab=1000)
    met = plan(config, 132)
    fewer = plan(replace(config, experts=Experts(128, 1)), 132)

    assert bytes_a_phase(met) > 1.5 * bytes_a_phase(fewer)
    of_met, of_fewer = (flight_of(make_layout(made, "bf16", Tuning())) for made in (met, fewer))
    assert of_met.cache > of_fewer.cache


def test_an_expert_that_ends_within_a_chunk_is_refused() -> None:
    with pytest.raises(ConfigError, match="columns of an expert is 44; it must be a multiple of 32"):
        plan(replace(TINY, ffn=44), 4)


def test_the_ring_leaves_room_for_many_experts_scores() -> None:
    many = replace(TINY, experts=Experts(count=512, chosen=8))
    layout = make_layout(plan(many, 4), "f16", Tuning())

    assert layout.mail_words > make_layout(plan(TINY, 4), "f16", Tuning()).mail_words


@pytest.mark.parametrize(
    ("name", "storage"), [("gpt-oss-20b", Storage.MXFP4), ("qwen3-30b-a3b", Storage.FP8_BLOCK)]
)
def test_packed_experts_take_the_bytes_of_their_format(name: str, storage: Storage) -> None:
    config = load_preset(name).config
    met = ExpertRegion(config, storage, storage).met_bytes

    in_files = 2 * matrix_bytes(storage, config.ffn, config.hidden) + matrix_bytes(
        storage, config.hidden, config.ffn
    )
    count = config.experts.chosen if config.experts else 0
    assert 1.0 <= met / (config.layers * count * in_files) < 1.02

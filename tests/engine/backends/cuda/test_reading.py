"""Into how many parts pieces of prompts are cut, without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.backends.cuda.reading import MOST_DELAY, PART_US, PIECE, SHARES_PIECE, Cost, Ways, next_piece
from engine.models.presets import load_preset
from tests.engine.backends.cuda.test_constants import layout_of

COST = Cost(met=1e6, held=1e6, q_dim=64, windows=(0,) * 8, step_us=500)


@pytest.mark.parametrize(
    ("name", "begin", "end"), [("smollm2-135m", 2, 2), ("laneformer-2b", 2, 3), ("llama-3.2-1b", 2, 2)]
)
def test_pieces_of_known_models_have_so_many_parts(name: str, begin: int, end: int) -> None:
    cost = Cost.of(layout_of(load_preset(name).config))
    assert (cost.parts(PIECE, 0), cost.parts(PIECE, 3488)) == (begin, end)


def test_what_a_pass_takes_is_about_what_was_measured() -> None:
    """Prompts of 512 tokens in docs/performance.md; the last layer's share and the head are part of those."""
    for name, measured_us in (("smollm2-135m", 1702), ("llama-3.2-1b", 2522), ("laneformer-2b", 5439)):
        taken = Cost.of(layout_of(load_preset(name).config)).of_pass(512, 0)
        assert taken == pytest.approx(measured_us, rel=0.15)


def test_a_piece_far_behind_has_more_parts() -> None:
    assert COST.parts(PIECE, 0) < COST.parts(PIECE, 30_000)


def test_positions_beyond_a_window_cost_nothing() -> None:
    windowed = replace(COST, windows=(100,) * 8)
    assert windowed.of_pass(PIECE, 100) == windowed.of_pass(PIECE, 30_000) == COST.of_pass(PIECE, 100)


@pytest.mark.parametrize("met", [0, 1e6, 1e8, 3e9])
@pytest.mark.parametrize("step_us", [1, 500, 20_000])
@pytest.mark.parametrize("past", [0, 30_000])
def test_parts_are_no_longer_than_wanted_unless_the_prompt_would_take_too_long(
    met: float, step_us: float, past: int
) -> None:
    cost = replace(COST, met=met, held=met, step_us=step_us)
    parts, whole = cost.parts(PIECE, past), cost.of_pass(PIECE, past)

    def delay(parts: int) -> float:
        return (whole + parts * step_us) / (whole + step_us)

    assert 1 <= parts <= 8
    assert delay(parts) <= MOST_DELAY
    assert whole / parts <= PART_US or parts == 8 or delay(parts + 1) > MOST_DELAY


@pytest.mark.parametrize("past", [0, 1000, 20_000])
def test_all_parts_of_a_piece_go_through_each_layer_once(past: int) -> None:
    ways, read, layers = Ways(2048, 65, COST), 0, list[int]()
    while not layers or read < len(COST.windows):
        piece = next_piece(ways, 0, past, past + 2000, read, bounded=True)
        assert piece.layers is not None
        assert piece.layers[0] == read
        layers += range(*piece.layers)
        read = piece.layers[1]

    assert layers == list(range(len(COST.windows)))


def test_by_shares_a_piece_is_shorter_and_goes_through_all_layers() -> None:
    piece = next_piece(Ways(0, 1 << 30, COST), 0, 0, 2000, 0, bounded=True)
    assert (piece.end, piece.layers) == (SHARES_PIECE, None)

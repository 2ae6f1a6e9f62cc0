"""The shape of a model: what contradicts itself, what a layer attends to, what lanes exchange."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import ConfigError
from engine.models.config import Exchange, HeadKind, Lanes, ModelConfig

PLAIN = ModelConfig("m", 64, 4, 8, 4, 8, 128, 100, 32)
LANED = replace(PLAIN, lanes=Lanes(count=4, delay=2))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"hidden": 0}, "hidden is 0, must be at least 1"),
        ({"layers": -1}, "layers is -1, must be at least 1"),
        ({"context": 0}, "context is 0"),
        ({"kv_heads": 3}, "8 query heads do not share 3 KV heads evenly"),
        ({"head_dim": 7}, "head_dim is 7, rotary positions need an even number"),
        ({"windows": (1, 2)}, "2 windows for 4 layers"),
        ({"windows": (0, 0, 0, -1)}, "a sliding window is negative"),
        ({"lanes": Lanes(count=0)}, "lanes is 0"),
        ({"lanes": Lanes(count=3)}, "8 query heads do not split over 3 lanes"),
        ({"lanes": Lanes(count=8)}, "4 KV heads do not split over 8 lanes"),
        ({"lanes": Lanes(count=4), "ffn": 126}, "126 MLP columns do not split over 4 lanes"),
        ({"lanes": Lanes(count=4, head=HeadKind.VOCAB_PARALLEL), "vocab": 99}, "a vocabulary of 99"),
        ({"lanes": Lanes(count=4, delay=5)}, "delay is 5 layers, allowed are 0 to 4"),
        ({"lanes": Lanes(count=4, delay=-1)}, "delay is -1 layers"),
        ({"lanes": Lanes(count=4, head=HeadKind.LANE), "tied_head": True}, "cannot be tied"),
    ],
)
def test_a_shape_that_contradicts_itself_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"model 'm': .*{problem}"):
        replace(PLAIN, **changes)


def test_without_windows_every_layer_sees_everything() -> None:
    assert PLAIN.windows == (0, 0, 0, 0)
    assert PLAIN.attended_positions(3, 20) == range(21)


@given(window=st.integers(1, 40), position=st.integers(0, 31))
def test_a_window_ends_at_the_position_itself(window: int, position: int) -> None:
    config = replace(PLAIN, windows=(0, window, 0, 0))

    seen = config.attended_positions(1, position)

    assert seen[-1] == position
    assert len(seen) == min(window, position + 1)


def test_derived_sizes() -> None:
    assert (PLAIN.q_dim, PLAIN.kv_dim, PLAIN.queries_per_kv) == (64, 32, 2)
    assert PLAIN.head_copies == 1
    assert replace(PLAIN, lanes=Lanes(count=4, head=HeadKind.LANE)).head_copies == 4


def test_a_tied_head_is_counted_once() -> None:
    assert PLAIN.parameters - replace(PLAIN, tied_head=True).parameters == 100 * 64


@pytest.mark.parametrize(
    ("changes", "attention", "mlp"),
    [
        ({}, "now now past past", "now now past past"),
        ({"early_comm": False}, "own own past past", "own own past past"),
        ({"attention_comm": False}, "now now own own", "now now past past"),
        ({"mlp_comm": False}, "now now past past", "now now own own"),
        ({"delay": 0}, "past past past past", "past past past past"),
        ({"delay": 4}, "now now now now", "now now now now"),
        ({"count": 1}, "own own own own", "own own own own"),
    ],
)
def test_what_lanes_exchange_in_each_layer(changes: dict[str, Any], attention: str, mlp: str) -> None:
    words = {"own": Exchange.LOCAL, "now": Exchange.SYNC, "past": Exchange.DELAYED}
    lanes = replace(LANED.lanes, **changes)

    assert [lanes.attention_exchange(i) for i in range(4)] == [words[w] for w in attention.split()]
    assert [lanes.mlp_exchange(i) for i in range(4)] == [words[w] for w in mlp.split()]

from __future__ import annotations

import pytest

from engine.whole_numbers import is_whole


@pytest.mark.parametrize("value", [1, 4, 8])
def test_a_whole_number_lies_within_its_bounds(value: int) -> None:
    assert is_whole(value, 1, 8)
    assert is_whole(value, 1)


@pytest.mark.parametrize("value", [0, 9, -1, True, 1.0, "1", None])
def test_others_are_none(value: object) -> None:
    assert not is_whole(value, 1, 8)

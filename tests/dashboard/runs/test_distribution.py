"""Gaps between tokens as a histogram, a cumulative curve and percentiles with their intervals."""

from __future__ import annotations

import re
from itertools import pairwise

import numpy as np
import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import ecdf

from dashboard.runs.distribution import Distribution, distribution
from engine.measuring.measurement import Samples
from tests.dashboard import factories
from tests.dashboard.runs.test_run_page import page_of, text

REPEATS = 5
gaps = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=400)


def drawn(values: list[float]) -> Distribution:
    found = distribution([values[i::REPEATS] for i in range(REPEATS)])
    assert found is not None
    return found


def counted(found: Distribution) -> int:
    return sum(int(re.match(r"\d+", bar.label)[0]) for bar in found.bars)  # type: ignore[index]


@given(gaps)
def test_every_gap_is_in_a_bar_or_counted_as_beyond(values: list[float]) -> None:
    found = drawn(values)
    assert counted(found) + found.beyond == found.n == len(values)


@given(gaps)
def test_bars_and_curve_stay_inside_the_drawing(values: list[float]) -> None:
    found = drawn(values)
    for bar in found.bars:
        assert found.left <= bar.x and bar.x + bar.width <= found.right + 0.5
        assert found.top <= bar.y and bar.y + bar.height == pytest.approx(found.bottom)
    for x, y in points(found):
        assert found.left <= x <= found.right and found.top <= y <= found.bottom


@pytest.mark.slow
@given(gaps)
def test_curve_never_falls(values: list[float]) -> None:
    line = points(drawn(values))
    assert all(x0 <= x1 and y0 >= y1 for (x0, y0), (x1, y1) in pairwise(line))


def test_curve_is_the_empirical_distribution_of_scipy() -> None:
    values = np.random.default_rng(1).gamma(9.0, 30.0, 200).tolist()
    found = drawn(values)
    expected = ecdf(values).cdf
    height = found.bottom - found.top
    shares = [(found.bottom - y) / height for _, y in points(found)[1:]]
    assert shares == pytest.approx(expected.probabilities.tolist(), abs=1e-4)


def test_one_stray_gap_does_not_squeeze_the_rest() -> None:
    values = [100.0 + (i % 20) for i in range(1000)] + [50_000.0]
    found = drawn(values)
    assert (found.beyond, found.longest) == (1, 50_000.0)
    assert len(found.bars) >= 10


def test_gaps_that_are_all_the_same_make_one_bar() -> None:
    assert len(drawn([250.0] * 50).bars) == 1


def test_percentile_that_n_does_not_bound_says_how_many_it_needs() -> None:
    by_name = {p.name: p for p in drawn([float(i) for i in range(1, 101)]).percentiles}
    assert by_name["p50"].value == pytest.approx(50.5) and by_name["p50"].interval is not None
    assert by_name["p99"].value is None and by_name["p99"].needed == 368


def test_without_gaps_there_is_nothing_to_draw() -> None:
    assert distribution([]) is None


@pytest.mark.django_db
def test_page_shows_both_drawings_and_says_where_there_are_no_gaps(client: Client) -> None:
    with_gaps = factories.stored(samples=Samples(itl_us=(tuple(float(i) for i in range(1, 101)),)))
    page = page_of(client, with_gaps)
    assert "Gaps by length, µs; n = 100" in text(page) and "needs n = 368" in text(page)
    assert page.count('class="chart gaps"') == 2
    assert "kept no raw gaps" in page_of(client, factories.stored(day=1))


def points(found: Distribution) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.curve.split())]

"""The geometry of the charts that the server draws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.charts.phases import WIDTH, phase_chart, sample_strip
from engine.timings import PHASES, PhaseTime

# Clocks count nanoseconds: nothing lasts a part of one.
microseconds = st.integers(0, 10**9).map(lambda ns: ns / 1e3)
phases = st.dictionaries(
    st.sampled_from([*PHASES, "other"]), st.builds(PhaseTime, microseconds, microseconds, microseconds)
)
speeds = st.floats(1e-3, 1e6)


@given(phases)
def test_bars_are_as_long_as_their_time_and_stay_in_the_picture(found: dict[str, PhaseTime]) -> None:
    chart = phase_chart(found)
    if chart is None:
        assert not any(t.work or t.wait_local or t.wait_peer for t in found.values())
        return
    longest = max(chart.rows, key=lambda row: row.total)
    scale = sum(s.width for s in longest.segments) / longest.total
    for row in chart.rows:
        assert sum(s.width for s in row.segments) == pytest.approx(row.total * scale, abs=0.1)
        assert all(s.x + s.width <= WIDTH for s in row.segments)
    assert sum(row.share for row in chart.rows) == pytest.approx(1)


@given(st.lists(speeds, min_size=1, max_size=20))
def test_every_sample_and_the_interval_are_inside_the_axis(samples: list[float]) -> None:
    ordered = sorted(samples)
    strip = sample_strip(samples, ordered[len(ordered) // 2], (ordered[0], ordered[-1]))
    places = [d.at for d in strip.dots] + [strip.band_x, strip.band_x + strip.band_width, strip.median_x]
    assert all(0 <= x <= WIDTH for x in places)
    assert len(strip.dots) == len(samples)
    assert 1 <= len(strip.ticks) <= 7


def test_faster_sample_stands_further_right() -> None:
    strip = sample_strip((10.0, 20.0), 15.0, (10.0, 20.0))
    assert strip.dots[0].at < strip.median_x < strip.dots[1].at


def test_phases_of_experts_stand_in_their_place() -> None:
    phases = {name: PhaseTime(1.0) for name in ("down", "experts", "router", "qkv", "made up")}
    chart = phase_chart(phases)
    assert chart is not None
    assert [row.name for row in chart.rows] == ["qkv", "router", "down", "experts", "made up"]

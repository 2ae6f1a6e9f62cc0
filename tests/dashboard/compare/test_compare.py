"""Runs side by side: deltas with intervals, the breakdown, and what else differs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest_django import DjangoAssertNumQueries

from dashboard.compare.breakdown import breakdown
from dashboard.compare.environments import differences
from dashboard.compare.figures import COMPARED, Compared, Row, compare
from dashboard.measurements.ingest import digest_of
from engine.measuring.measurement import DecodeSpeed, Samples, read_measurements
from engine.measuring.measurement import Measurement as Result
from engine.measuring.statistics import median
from engine.timings import PhaseTime
from tests.dashboard import factories

URL = "/dashboard/compare/"
positive = st.floats(0.1, 1e6)
some = st.lists(positive, min_size=1, max_size=12)


def speed_of(speeds: list[float], **changes: Any) -> Result:
    ordered = sorted(speeds)
    return factories.result(
        decode=DecodeSpeed(median(speeds), (ordered[0], ordered[-1]), tuple(speeds)), **changes
    )


def five(gaps: list[float]) -> tuple[tuple[float, ...], ...]:
    """Dealt to five repeats."""
    return tuple(tuple(gaps[i::5]) for i in range(5))


def compared(*results: Result) -> list[Row]:
    return compare([Compared(result, digest_of(result.to_dict())) for result in results])


def row(rows: list[Row], title: str) -> Row:
    return next(r for r in rows if r.metric.title.startswith(title))


@pytest.mark.slow
@settings(max_examples=30)
@given(
    some,
    some,
    st.lists(positive, min_size=1, max_size=400),
    st.dictionaries(st.sampled_from(["qkv", "head", "x"]), positive),
)
def test_a_run_compared_with_itself_is_all_zeros(
    speeds: list[float], ttft: list[float], gaps: list[float], phases: dict[str, float]
) -> None:
    raw = Samples(ttft_ms=tuple(ttft), itl_us=(tuple(gaps),))
    result = speed_of(
        speeds, samples=raw, phases_us={k: PhaseTime(v, v / 3, v / 7) for k, v in phases.items()}
    )
    for line in compared(result, result, result):
        for cell in line.cells[1:]:
            assert cell.change in (0.0, None)
            assert cell.interval in ((0.0, 0.0), None)
            assert cell.verdict in ("no clear change", "")
    found = differences([result, result])
    assert found.environment == found.settings == found.code == ()
    if parts := breakdown([result.phases_us, result.phases_us]):
        assert parts.changes == (0.0, 0.0)
        assert all(part.change == 0.0 and set(part.by_kind) == {0.0} for p in parts.rows for part in p.parts)


@pytest.mark.parametrize(
    ("after", "verdict"),
    [(120.0, "better"), (80.0, "worse"), (100.0, "no clear change")],
)
def test_verdict_says_whether_the_interval_holds_zero(after: float, verdict: str) -> None:
    noise = (-1.0, -0.5, 0.0, 0.5, 1.0)
    cell = row(
        compared(speed_of([100 + n for n in noise]), speed_of([after + n for n in noise])), "Decode"
    ).cells[1]
    assert cell.verdict == verdict


@pytest.mark.parametrize("n", [1, 4])
def test_fewer_than_five_repeats_have_a_change_but_no_interval_and_no_verdict(n: int) -> None:
    for before, after in ((n, 9), (9, n)):
        runs = speed_of([100.0 + i for i in range(before)]), speed_of([200.0 + i for i in range(after)])
        cell = row(compared(*runs), "Decode").cells[1]
        assert cell.change is not None and cell.change > 0.9
        assert (cell.interval, cell.verdict) == (None, "")


def test_halves_of_one_run_show_no_clear_change_between_tokens() -> None:
    """Many gaps are no many samples: the repeats differ among themselves by more than the halves do."""
    whole = read_measurements(Path("benchmarks/laneformer-2b-h200.json"))[0]
    halves = [half_of(whole, range(5)), half_of(whole, range(5, 10))]
    for title in ("Decode", "Inter-token latency, p50", "Inter-token latency, p99"):
        cell = row(compared(*halves), title).cells[1]
        assert (cell.verdict, cell.n) == ("no clear change", 5)


@pytest.mark.nightly
def test_nineteen_in_twenty_halvings_of_one_run_show_no_clear_change() -> None:
    whole = read_measurements(Path("benchmarks/laneformer-2b-h200.json"))[0]
    titles = ("Decode", "Inter-token latency, p50", "Inter-token latency, p99")
    changed = dict.fromkeys(titles, 0)
    halvings = [half for half in combinations(range(10), 5) if 0 in half]
    for half in halvings:
        others = [repeat for repeat in range(10) if repeat not in half]
        comparison = compared(half_of(whole, half), half_of(whole, others))
        for title in titles:
            changed[title] += row(comparison, title).cells[1].verdict != "no clear change"
    assert max(changed.values()) <= 0.05 * len(halvings), changed


def half_of(whole: Result, repeats: Sequence[int]) -> Result:
    gaps = tuple(whole.samples.itl_us[i] for i in repeats)
    speeds = tuple(whole.decode.samples[i] for i in repeats)
    flat = [gap for repeat in gaps for gap in repeat]
    return replace(
        whole,
        decode=DecodeSpeed(median(speeds), (min(speeds), max(speeds)), speeds),
        itl_us=factories.InterTokenLatency(
            median(flat), float(np.quantile(flat, 0.9)), float(np.quantile(flat, 0.99)), len(flat)
        ),
        samples=Samples(itl_us=gaps),
    )


def test_a_shorter_latency_is_better() -> None:
    slow, fast = (
        factories.result(
            samples=Samples(ttft_ms=tuple(t + i for i in range(5))), ttft_ms=factories.FirstToken(t + 2, 5)
        )
        for t in (50.0, 20.0)
    )
    cell = row(compared(slow, fast), "Time to first").cells[1]
    assert (cell.verdict, cell.change) == ("better", pytest.approx(22 / 52 - 1))


def test_without_raw_samples_there_is_a_change_but_no_interval() -> None:
    cell = row(
        compared(factories.result(tok_s=100), factories.result(tok_s=50)), "Inter-token latency, p50"
    ).cells[1]
    assert (cell.change, cell.interval, cell.verdict) == (pytest.approx(1.0), None, "")


def test_p99_has_an_interval_only_with_enough_gaps() -> None:
    def with_gaps(n: int) -> Result:
        gaps = np.random.default_rng(n).gamma(50, 20, n)
        latency = factories.InterTokenLatency(1000.0, 1100.0, float(np.quantile(gaps, 0.99)), n)
        return factories.result(samples=Samples(itl_us=five(gaps.tolist())), itl_us=latency)

    few, many, more = with_gaps(300), with_gaps(400), with_gaps(500)
    assert row(compared(many, few), "Inter-token latency, p99").cells[1].interval is None
    assert row(compared(many, more), "Inter-token latency, p99").cells[1].interval is not None


def test_a_comparison_says_the_same_each_time() -> None:
    runs = (speed_of([99.0, 100, 104]), speed_of([101.0, 102, 110]))
    assert compared(*runs) == compared(*runs)


def test_breakdown_gives_the_difference_of_each_phase_by_kind() -> None:
    found = breakdown([{"qkv": PhaseTime(10, 2, 1)}, {"qkv": PhaseTime(8, 5, 1), "head": PhaseTime(4)}])
    assert found is not None
    qkv, head = found.rows
    assert (qkv.parts[1].change, qkv.parts[1].by_kind) == (1.0, (-2.0, 3.0, 0.0))
    assert (head.parts[0].total, head.parts[1].change) == (0.0, 4.0)
    assert found.changes == (0.0, 5.0)


def test_breakdown_needs_the_phases_of_every_run() -> None:
    assert breakdown([{"qkv": PhaseTime(1)}, {}]) is None


def test_bars_of_a_breakdown_do_not_overlap() -> None:
    found = breakdown([{"qkv": PhaseTime(1), "head": PhaseTime(2)}] * 3)
    assert found is not None
    ys = [part.y for phase in found.rows for part in phase.parts]
    assert ys == sorted(ys) and min(np.diff(ys)) > found.bar
    assert max(ys) + found.bar <= found.height


def in_environment(**facts: Any) -> Result:
    return replace(factories.result(), environment={"python": "3.11", **facts})


def test_a_different_driver_is_a_difference_and_load_is_not() -> None:
    one = in_environment(driver="1", state={"before": {"load_average": [1.0]}, "after": {}})
    other = in_environment(driver="2", state={"before": {"load_average": [2.0]}, "after": {}})
    (found,) = differences([one, other]).environment
    assert (found.name, found.values) == ("driver", ("1", "2"))


def test_a_fact_that_one_run_lacks_is_a_difference() -> None:
    (found,) = differences([in_environment(ecc="on"), in_environment()]).environment
    assert found.values == ("on", "not recorded")


@pytest.mark.parametrize(
    ("state", "names"),
    [
        ({"sm_mhz": 1980.0, "throttle": "0x0"}, []),
        ({"sm_mhz": 1975.0, "throttle": "0x0"}, []),
        ({"sm_mhz": 1500.0, "throttle": "0x0"}, ["sm_mhz after the run"]),
        ({"sm_mhz": 1980.0, "throttle": "0x4"}, ["throttling after the run"]),
    ],
)
def test_clocks_and_throttling_count_and_their_noise_does_not(
    state: dict[str, Any], names: list[str]
) -> None:
    usual = {"sm_mhz": 1980.0, "throttle": "0x0"}
    runs = [in_environment(state={"after": {"gpus": [gpu]}}) for gpu in (usual, state)]
    assert [d.name for d in differences(runs).environment] == names


def test_the_commit_is_a_difference_of_the_code_and_not_of_the_environment() -> None:
    one, other = (replace(in_environment(git={"sha": s}), git_sha=s) for s in ("a" * 40, "b" * 40))
    found = differences([one, other])
    assert found.environment == ()
    assert [d.values for d in found.code] == [("aaaaaaaaa", "bbbbbbbbb")]


def test_other_settings_are_named() -> None:
    found = differences([factories.result(context=16), factories.result(context=32)])
    assert [(d.name, d.values) for d in found.settings] == [("context", ("16", "32"))]


@pytest.mark.django_db
class TestPage:
    def test_two_runs_stand_side_by_side_with_a_permalink(self, client: Client) -> None:
        first, second = factories.stored(tok_s=100, day=0), factories.stored(tok_s=110, day=1)
        page = client.get(f"{URL}?run={first.pk}&run={second.pk}").content.decode()
        assert "+10.0" in page and "data-copy-link" in page
        assert f"?run={first.pk}" in page and "not taken in the same environment" not in page

    def test_different_environments_raise_a_red_banner_that_says_what_differs(self, client: Client) -> None:
        first = factories.stored(day=0)
        second = factories.stored(day=1, environment={"python": "3.12"})
        page = client.get(f"{URL}?run={first.pk}&run={second.pk}").content.decode()
        banner = page[page.index('class="notice error" role="alert"') :]
        assert "not taken in the same environment" in banner
        assert "3.11 · 3.12" in banner

    def test_the_same_run_twice_is_all_zeros(self, client: Client) -> None:
        key = factories.stored().pk
        rows = client.get(f"{URL}?run={key}&run={key}").context["rows"]
        assert {cell.change for r in rows for cell in r.cells[1:]} <= {0.0, None}
        assert len(rows) == len(COMPARED)

    def test_nothing_chosen_says_how_to_choose(self, client: Client) -> None:
        assert "Choose two runs" in client.get(URL).content.decode()

    def test_an_unknown_run_is_not_found(self, client: Client) -> None:
        assert client.get(f"{URL}?run=999").status_code == 404

    @pytest.mark.parametrize(
        ("query", "reason"),
        [
            ("run=x", "is no run"),
            ("run=-1", "is no run"),
            ("run=" + "9" * 30, "is no run"),
            ("&".join(["run=1"] * 7), "at most 6"),
        ],
    )
    def test_senseless_runs_are_refused_with_a_message(self, client: Client, query: str, reason: str) -> None:
        response = client.get(f"{URL}?{query}")
        assert response.status_code == 400
        assert reason in response.content.decode()

    def test_number_of_queries_does_not_grow_with_the_runs(
        self, client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
    ) -> None:
        keys = [factories.stored(day=day).pk for day in range(6)]
        with django_assert_max_num_queries(3):
            client.get(URL + "?" + "&".join(f"run={key}" for key in keys))

    def test_page_needs_no_inline_style_or_script(self, client: Client) -> None:
        keys = [factories.stored(day=day).pk for day in range(2)]
        page = client.get(f"{URL}?run={keys[0]}&run={keys[1]}").content.decode()
        assert not re.search(r"\sstyle=|\son\w+=|<style", page)

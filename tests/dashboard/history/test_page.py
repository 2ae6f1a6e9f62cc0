"""The history page: series, bands, steps and filters, all from the URL."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.history import views
from dashboard.history.chart import round_values
from dashboard.models import Configuration
from engine.measuring.measurement import Samples
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/history/"
RAW = Samples(
    ttft_ms=(12.0, 12.5, 13.0, 12.4, 12.6),
    prefill_tok_s=(1400.0, 1450.0, 1500.0, 1550.0, 1600.0),
    itl_us=tuple(tuple(float(900 + (i * 7 + j * 13) % 200) for j in range(80)) for i in range(5)),
)


@pytest.fixture
def two() -> list[int]:
    """Keys of two configurations; the first has a run on days 0, 1, 2, the second on day 1."""
    for day in (2, 0, 1):
        factories.stored(tok_s=100 + day, day=day)
    factories.stored(tok_s=500, day=1, backend="cuda")
    return list(Configuration.objects.order_by("-backend").values_list("pk", flat=True))


def stepped() -> int:
    """The key of a configuration whose speed falls from 100 to 80 at the sixth of twelve runs."""
    for day in range(12):
        factories.stored(tok_s=100 if day < 5 else 80, day=day, git_sha=f"{day:040x}"[::-1])
    return Configuration.objects.values_list("pk", flat=True)[0]


def chart(client: Client, query: str) -> Any:
    page = client.get(f"{URL}?{query}").content.decode()
    found = re.search(r'<script id="history-data" type="application/json">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_empty_history_says_how_it_grows(client: Client) -> None:
    assert "There is no history yet" in client.get(URL).content.decode()


def test_nothing_chosen_lists_the_configurations(client: Client, two: list[int]) -> None:
    response = client.get(URL)
    assert [one["runs"] for one in response.context["listed"]] == [3, 1]
    assert b"Choose up to 6" in response.content


def test_series_runs_from_old_to_new_with_spread_and_n(client: Client, two: list[int]) -> None:
    (series,) = chart(client, f"configuration={two[0]}")["series"]
    assert series["value"] == [100, 101, 102]
    assert all(
        low < value < high
        for low, value, high in zip(series["low"], series["value"], series["high"], strict=True)
    )
    assert series["n"] == [5, 5, 5]
    assert series["time"] == [(factories.DAY.timestamp() + day * 86_400) for day in range(3)]


def test_several_configurations_keep_the_order_of_the_url(client: Client, two: list[int]) -> None:
    series = chart(client, f"configuration={two[1]}&configuration={two[0]}")["series"]
    assert [len(s["value"]) for s in series] == [1, 3]


def test_mbu_is_in_percent_and_its_interval_is_the_speed_s(client: Client, two: list[int]) -> None:
    found = chart(client, f"configuration={two[1]}&metric=mbu_measured")
    (series,) = found["series"]
    assert (found["unit"], series["value"]) == ("%", [40])
    assert (series["low"], series["high"]) == ([pytest.approx(39.2)], [pytest.approx(40.4)])


@pytest.mark.parametrize("metric", ["ttft_ms", "itl_p50", "itl_p99", "prefill_tok_s"])
def test_bands_of_latencies_come_from_the_raw_samples(client: Client, metric: str) -> None:
    p99 = factories.InterTokenLatency(995.5, 1080.0, 1098.0, 400)
    factories.stored(samples=RAW, itl_us=p99, ttft_ms=factories.FirstToken(12.5, 5))
    (series,) = chart(client, f"configuration={Configuration.objects.get().pk}&metric={metric}")["series"]
    assert series["low"][0] <= series["value"][0] <= series["high"][0]
    assert series["low"][0] < series["high"][0]


def test_without_raw_samples_there_is_no_band_and_the_table_says_so(client: Client, two: list[int]) -> None:
    query = f"configuration={two[0]}&metric=ttft_ms"
    (series,) = chart(client, query)["series"]
    assert (series["low"], series["high"]) == ([None] * 3, [None] * 3)
    assert "no raw samples" in client.get(f"{URL}?{query}").content.decode()


def test_run_without_the_metric_is_left_out_of_it(client: Client, two: list[int]) -> None:
    assert chart(client, f"configuration={two[0]}&metric=itl_p99")["series"][0]["value"] == []


def test_wrong_tokens_are_marked(client: Client) -> None:
    factories.stored(day=0)
    factories.stored(day=1, verified=factories.Verified("a reference", False, None))
    found = chart(client, f"configuration={Configuration.objects.get().pk}")
    assert found["series"][0]["differs"] == [1]


@pytest.mark.slow
def test_a_step_names_the_commits_that_it_lies_between_and_offers_to_compare_them(client: Client) -> None:
    key = stepped()
    response = client.get(f"{URL}?configuration={key}")
    (change,) = response.context["changes"]
    assert (change.at, change.change, change.better) == (5, pytest.approx(-0.2), False)
    page = text(response.content.decode())
    assert "−20.0 % worse after 400000000 , up to 500000000" in page.replace("\N{NO-BREAK SPACE}", " ")
    assert f"compare/?run={change.last.key}&amp;run={change.first.key}" in response.content.decode()
    assert chart(client, f"configuration={key}")["steps"][0]["at"] == 5


def test_a_step_of_a_latency_is_better_when_it_falls(client: Client) -> None:
    key = stepped()
    (change,) = client.get(f"{URL}?configuration={key}&metric=itl_p50").context["changes"]
    assert (change.better, change.after > change.before) == (False, True)


def test_a_step_within_one_commit_points_at_the_environment(client: Client) -> None:
    for day in range(12):
        factories.stored(tok_s=100 if day < 5 else 120, day=day)
    page = client.get(f"{URL}?configuration={Configuration.objects.get().pk}").content.decode()
    assert "look at the environment" in page


def test_table_under_the_chart_has_the_newest_first(client: Client, two: list[int]) -> None:
    page = client.get(f"{URL}?configuration={two[0]}").content.decode()
    body = page[page.index("The same as a table") :]
    days = re.findall(r">(\d{4}-\d\d-\d\d) \d\d:\d\d<", body)
    assert days[:3] == ["2026-01-03", "2026-01-02", "2026-01-01"]


def test_long_history_shows_its_newest_runs_and_says_that_there_are_more(
    client: Client, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(views, "TABLE_ROWS", 2)
    response = client.get(f"{URL}?configuration={two[0]}")
    assert "The newest 2 of 3 runs" in response.content.decode()
    assert [sample.value for _, sample in response.context["table"]] == [102, 101]
    assert len(chart(client, f"configuration={two[0]}")["series"][0]["value"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "query",
    [
        "configuration=999",
        "metric=charm",
        "configuration=x",
        "axis=moon",
        "from=%3Cscript%3E",
        "backend=abacus",
    ],
)
def test_senseless_choice_is_refused_with_a_message(client: Client, two: list[int], query: str) -> None:
    response = client.get(f"{URL}?{query}")
    assert response.status_code == 400
    assert b'class="notice error"' in response.content


def test_a_zoom_in_the_url_is_accepted_and_changes_no_figure(client: Client, two: list[int]) -> None:
    zoomed = f"configuration={two[0]}&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z"
    assert chart(client, zoomed) == chart(client, f"configuration={two[0]}")


def test_facets_choose_what_is_listed_and_keep_what_is_chosen(client: Client, two: list[int]) -> None:
    response = client.get(f"{URL}?backend=cuda&configuration={two[0]}")
    assert [one["configuration"].backend for one in response.context["listed"]] == ["numpy", "cuda"]
    listed = client.get(f"{URL}?backend=cuda").context["listed"]
    assert [one["configuration"].backend for one in listed] == ["cuda"]


def test_more_lines_than_can_be_told_apart_are_refused(client: Client) -> None:
    for context in range(1, 8):
        factories.stored(context=context)
    keys = Configuration.objects.values_list("pk", flat=True)
    response = client.get(URL + "?" + "&".join(f"configuration={k}" for k in keys))
    assert response.status_code == 400
    assert b"at most 6" in response.content


def test_csv_and_json_hold_the_series(client: Client, two: list[int]) -> None:
    query = f"configuration={two[0]}&metric=tok_s"
    rows = client.get(f"/dashboard/history.json?{query}").json()["rows"]
    assert [r["value"] for r in rows] == [100, 101, 102]
    assert rows[0]["created"] == factories.DAY.isoformat()
    assert client.get(f"/dashboard/history.csv?{query}").content.decode().count("\r\n") == 4


def test_export_with_a_senseless_choice_is_refused(client: Client, two: list[int]) -> None:
    assert client.get("/dashboard/history.json?metric=charm").status_code == 400


def test_number_of_queries_does_not_grow_with_the_runs(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for day in range(30):
        factories.stored(day=day, context=1 + day % 6)
    chosen = "&".join(f"configuration={key}" for key in Configuration.objects.values_list("pk", flat=True))
    with django_assert_max_num_queries(6):
        client.get(f"{URL}?{chosen}")


def test_page_needs_no_inline_style_or_script(client: Client, two: list[int]) -> None:
    page = client.get(f"{URL}?configuration={two[0]}").content.decode()
    assert not re.search(r"\sstyle=|\son\w+=|<style", page)


def test_figures_are_sent_with_seven_significant_digits() -> None:
    found = round_values([864.34955286, 0.0012345678, 123456789.0, 0.0, None])
    assert found == [864.3496, 0.001234568, 123456789.0, 0.0, None]

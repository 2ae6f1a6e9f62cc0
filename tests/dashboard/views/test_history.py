"""History of configurations over time."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.test import Client

from dashboard import pages
from dashboard.models import Configuration
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/history/"


@pytest.fixture
def two() -> list[int]:
    """Keys of two configurations; the first has a run on days 0, 1, 2, the second on day 1."""
    for day in (2, 0, 1):
        factories.stored(tok_s=100 + day, day=day)
    factories.stored(tok_s=500, day=1, backend="cuda")
    return list(Configuration.objects.order_by("-backend").values_list("pk", flat=True))


def chart(client: Client, query: str) -> Any:
    page = client.get(f"{URL}?{query}").content.decode()
    found = re.search(r'<script id="history-data" type="application/json">(.*?)</script>', page)
    assert found
    return json.loads(found[1])


def test_empty_history_says_how_it_grows(client: Client) -> None:
    assert "There is no history yet" in client.get(URL).content.decode()


def test_nothing_chosen_lists_the_configurations(client: Client, two: list[int]) -> None:
    response = client.get(URL)
    assert [c.count for c in response.context["configurations"]] == [3, 1]
    assert b"Choose up to six" in response.content


def test_series_runs_from_old_to_new_with_spread(client: Client, two: list[int]) -> None:
    series = chart(client, f"configuration={two[0]}")["series"]
    samples = series[0]["samples"]
    assert [s["value"] for s in samples] == [100, 101, 102]
    assert all(s["low"] < s["value"] < s["high"] and s["n"] == 5 for s in samples)


def test_several_configurations_keep_the_order_of_the_url(client: Client, two: list[int]) -> None:
    series = chart(client, f"configuration={two[1]}&configuration={two[0]}")["series"]
    assert [len(s["samples"]) for s in series] == [1, 3]


def test_mbu_is_in_percent_and_has_no_interval(client: Client, two: list[int]) -> None:
    found = chart(client, f"configuration={two[0]}&metric=mbu_measured")
    assert found["unit"] == "%"
    assert [(s["value"], s["low"], s["high"]) for s in found["series"][0]["samples"]] == [(40, 40, 40)] * 3


def test_run_without_the_metric_is_left_out_of_it(client: Client, two: list[int]) -> None:
    assert chart(client, f"configuration={two[0]}&metric=itl_p99")["series"][0]["samples"] == []


def test_table_under_the_chart_has_the_newest_first(client: Client, two: list[int]) -> None:
    page = client.get(f"{URL}?configuration={two[0]}").content.decode()
    body = page[page.index("The same as a table") :]
    assert re.findall(r">(\d{4}-\d\d-\d\d) \d\d:\d\d<", body)[:3] == [
        "2026-01-03",
        "2026-01-02",
        "2026-01-01",
    ]


@pytest.mark.parametrize("query", ["configuration=999", "metric=charm", "configuration=x"])
def test_senseless_choice_is_refused_with_a_message(client: Client, two: list[int], query: str) -> None:
    response = client.get(f"{URL}?{query}")
    assert response.status_code == 400
    assert b'class="notice error"' in response.content


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
    assert client.get(f"/dashboard/history.csv?{query}").content.decode().count("\r\n") == 4


def test_long_history_shows_its_newest_runs_and_says_that_there_are_more(
    client: Client, two: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "TABLE_ROWS", 2)
    page = client.get(f"{URL}?configuration={two[0]}").content.decode()
    assert "The newest 2 of 3 runs" in page
    assert re.findall(r">(\d{4}-\d\d-\d\d) \d\d:\d\d<", page) == ["2026-01-03", "2026-01-02"]
    assert len(chart(client, f"configuration={two[0]}")["series"][0]["samples"]) == 3

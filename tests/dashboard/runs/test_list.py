"""The list of runs: filters in the URL, exports, empty states."""

from __future__ import annotations

import csv
import io

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.measurements import exports
from dashboard.measurements.services import record_measurement
from dashboard.models import Measurement
from engine.sampling import SamplingParams
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

pytestmark = pytest.mark.django_db
URL = "/dashboard/runs/"


def shown(client: Client, query: str = "") -> list[float]:
    return [row.tok_s for row in client.get(f"{URL}?{query}").context["page"]]


@pytest.fixture
def three() -> None:
    factories.stored(tok_s=10, day=1)
    factories.stored(tok_s=30, day=2, backend="cuda", context=256)
    factories.stored(tok_s=20, day=3, sampling=SamplingParams(temperature=0.8), git_sha="fedc" * 10)


def test_empty_dashboard_says_how_to_get_a_first_run(client: Client) -> None:
    page = client.get(URL).content.decode()
    assert "No measurement is stored yet" in page
    assert "manage.py sweep cpu-quick" in page and "import_results" in page


def test_newest_run_comes_first(client: Client, three: None) -> None:
    assert shown(client) == [20, 30, 10]


@pytest.mark.parametrize(
    ("query", "speeds"),
    [
        ("backend=cuda", [30]),
        ("context=256", [30]),
        ("sampling=t%3D0.8", [20]),
        ("sha=fedc", [20]),
        ("since=2026-01-03", [20, 30]),
        ("until=2026-01-02", [10]),
        ("verified=no", []),
        ("sort=-tok_s", [30, 20, 10]),
        ("backend=numpy&sort=tok_s", [10, 20]),
    ],
)
def test_filter_in_the_url_chooses_runs(client: Client, three: None, query: str, speeds: list[float]) -> None:
    assert shown(client, query) == speeds


@pytest.mark.parametrize("query", ["backend=abacus", "since=soon", "context=x", "sha=%27%3B--", "sort=id"])
def test_filter_that_makes_no_sense_is_named_and_shows_nothing(
    client: Client, three: None, query: str
) -> None:
    response = client.get(f"{URL}?{query}")
    assert response.status_code == 400
    assert list(response.context["page"]) == []
    assert "field-error" in response.content.decode()


def test_filters_that_match_nothing_offer_the_way_back(client: Client, three: None) -> None:
    page = client.get(f"{URL}?sha=0000").content.decode()
    assert "No run matches these filters" in page and "Show all 3" in page


def test_percentile_without_enough_samples_says_so(client: Client) -> None:
    factories.stored()
    assert "n too small" in client.get(URL).content.decode()


def test_unknown_bandwidth_is_unknown_and_not_zero(client: Client) -> None:
    factories.stored()
    page = client.get(URL).content.decode()
    assert "unknown" in page and "40.0" in page


def test_wrong_tokens_are_flagged(client: Client) -> None:
    factories.stored(verified=factories.Verified("a reference", False, None))
    assert ">differs<" in client.get(URL).content.decode()


def test_csv_holds_the_filtered_runs(client: Client, three: None) -> None:
    response = client.get("/dashboard/runs.csv?backend=numpy")
    rows = list(csv.DictReader(io.StringIO(response.content.decode())))
    assert [float(r["tok_s"]) for r in rows] == [20, 10]
    assert 'filename="runs.csv"' in response["Content-Disposition"]


def test_json_holds_the_same_rows_as_csv(client: Client, three: None) -> None:
    rows = client.get("/dashboard/runs.json").json()["rows"]
    assert [r["tok_s"] for r in rows] == [20, 30, 10]
    assert set(rows[0]) == set(exports.RUN_COLUMNS)


def test_csv_does_not_hand_formulas_to_a_spreadsheet(client: Client) -> None:
    factories.stored(model='=HYPERLINK("http://x")')
    assert "'=HYPERLINK" in client.get("/dashboard/runs.csv").content.decode()


def test_export_that_is_too_large_is_refused_and_not_cut_short(
    client: Client, three: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MAX_ROWS", 2)
    response = client.get("/dashboard/runs.csv")
    assert response.status_code == 400
    assert "3 runs; an export takes at most 2" in response.json()["error"]


def test_export_with_a_senseless_filter_is_refused(client: Client, three: None) -> None:
    assert client.get("/dashboard/runs.json?backend=abacus").status_code == 400


def test_failures_have_a_list_of_their_own(client: Client) -> None:
    run = factories.run_of(factories.sweep())
    work(run, fail=frozenset({0}))
    page = client.get(f"{URL}?failed=1").content.decode()
    assert "it burst" in page and run.get_absolute_url() in page


def test_number_of_queries_does_not_grow_with_the_runs(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for day in range(60):
        factories.stored(day=day, context=1 + day % 7)
    with django_assert_max_num_queries(12):
        client.get(URL)


def test_second_page_keeps_the_filters(client: Client) -> None:
    for day in range(55):
        factories.stored(day=day)
    page = client.get(f"{URL}?backend=numpy&page=2").content.decode()
    assert "Page 2 of 2" in page and "?backend=numpy&amp;page=1" in page


def test_only_reading_is_allowed(client: Client) -> None:
    assert client.post(URL).status_code == 405


def test_import_of_a_name_with_markup_is_shown_as_text(client: Client) -> None:
    record_measurement(document=factories.document(model="<script>alert(1)</script>"), source="x")
    page = client.get(URL).content.decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page
    assert Measurement.objects.count() == 1


def test_runs_are_ticked_and_compared(client: Client) -> None:
    first, second = factories.stored(), factories.stored(day=1)
    page = client.get(URL).content.decode()
    assert 'action="/dashboard/compare/"' in page
    for row in (first, second):
        assert f'type="checkbox" name="run" value="{row.pk}"' in page

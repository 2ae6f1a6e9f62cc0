"""The dashboard's API: what it answers, page by page, and what it refuses."""

from __future__ import annotations

from datetime import UTC
from typing import Any
from xml.etree import ElementTree

import pytest
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from dashboard.api.paging import Cursor
from dashboard.models import Measurement, Regression
from dashboard.regressions.services import judge_configurations
from tests.dashboard import factories
from tests.dashboard.regressions.test_services import GOOD, history

pytestmark = pytest.mark.django_db


def get(client: Client, path: str, **query: Any) -> Any:
    response = client.get(f"/api/{path}", query)
    assert response.status_code == 200, response.content
    return response.json()


def refusal(client: Client, path: str, **query: Any) -> tuple[int, str, str | None]:
    response = client.get(f"/api/{path}", query)
    error = response.json()["error"]
    return response.status_code, error["message"], error["field"]


@pytest.mark.slow
def test_runs_come_newest_first_with_their_units(client: Client) -> None:
    old, new = factories.stored(day=0), factories.stored(day=1, tok_s=200)
    found = get(client, "runs")
    assert [run["id"] for run in found["runs"]] == [new.pk, old.pk]
    assert found["next"] is None
    first = found["runs"][0]
    assert first["tok_s"] == {"median": 200.0, "ci95": [new.ci_low, new.ci_high], "n": 5}
    assert first["itl_us"]["p99"] is None
    assert first["configuration"]["hardware"] == "test device"
    assert first["url"] == new.get_absolute_url()


def test_pages_hold_every_run_once_though_new_ones_arrive(client: Client) -> None:
    known = {factories.stored(day=day // 2, context=day + 1).pk for day in range(7)}
    seen: list[int] = []
    address = "/api/runs?limit=3"
    while address:
        page = client.get(address).json()
        seen += [run["id"] for run in page["runs"]]
        address = page["next"]
        factories.stored(day=100 + len(seen))
    assert sorted(seen) == sorted(known)


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"model": "other"}, 1),
        ({"backend": "numpy"}, 3),
        ({"context": 32}, 1),
        ({"sha": "0123"}, 3),
        ({"sha": "ffff"}, 0),
        ({"since": "2026-01-02"}, 2),
        ({"until": "2026-01-02T00:00:00Z"}, 1),
        ({"verified": "true"}, 3),
        ({"verified": "false"}, 0),
    ],
)
def test_runs_are_filtered(client: Client, query: dict[str, Any], count: int) -> None:
    factories.stored(day=0)
    factories.stored(day=1, model="other")
    factories.stored(day=2, context=32)
    assert len(get(client, "runs", **query)["runs"]) == count


def test_one_run_has_its_whole_document(client: Client) -> None:
    row = factories.stored()
    assert get(client, f"runs/{row.pk}")["document"] == row.document
    assert refusal(client, "runs/999")[:2] == (404, "There is no run 999.")


def test_series_is_one_metric_of_one_configuration_oldest_first(client: Client) -> None:
    for day in range(5):
        row = factories.stored(day=day, tok_s=100 + day)
    factories.stored(context=99)
    first = get(client, "series", configuration=row.configuration_id, limit=3)
    assert [p["value"] for p in first["points"]] == [100, 101, 102]
    assert (first["unit"], first["more_is_better"]) == ("tok/s", True)
    assert first["points"][0]["ci95"] == [98, 101]
    rest = client.get(first["next"]).json()
    assert [p["value"] for p in rest["points"]] == [103, 104]
    assert rest["next"] is None


def test_series_leaves_out_what_was_not_measured(client: Client) -> None:
    row = factories.stored()
    key = row.configuration_id
    assert get(client, "series", configuration=key, metric="itl_p99")["points"] == []
    assert get(client, "series", configuration=key, metric="mbu_measured")["points"][0]["value"] == 40
    assert refusal(client, "series", configuration=999)[0] == 404


def test_configurations_say_how_they_stand(client: Client) -> None:
    history(*GOOD, 80, 80)
    (found,) = get(client, "configurations")["configurations"]
    by_metric = {s["metric"]: s for s in found["standings"]}
    assert by_metric["tok_s"]["label"] == "regression"
    assert by_metric["itl_p99"]["label"] == "insufficient"


def test_configurations_come_in_pages(client: Client) -> None:
    for context in range(1, 6):
        factories.stored(context=context)
    first = get(client, "configurations", limit=3)
    rest = client.get(first["next"]).json()
    contexts = [c["context"] for page in (first, rest) for c in page["configurations"]]
    assert (contexts, rest["next"]) == ([1, 2, 3, 4, 5], None)


def test_comparison_of_a_run_with_itself_is_all_zeros(client: Client) -> None:
    row = factories.stored()
    found = get(client, "comparisons", run=[row.pk, row.pk])
    for figure in found["figures"]:
        assert figure["runs"][1]["change"] in (0.0, None)
        assert figure["runs"][1]["change_ci95"] in ([0.0, 0.0], None)
    assert found["differences"] == {"environment": [], "settings": [], "code": []}


def test_comparison_gives_changes_with_intervals_and_what_differs(client: Client) -> None:
    base, other = factories.stored(), factories.stored(day=1, tok_s=200, context=32)
    found = get(client, "comparisons", run=[base.pk, other.pk])
    speed = found["figures"][0]["runs"][1]
    assert speed["change"] == pytest.approx(1.0)
    assert speed["change_ci95"][0] < 1.0 < speed["change_ci95"][1]
    assert speed["verdict"] == "better"
    assert {"name": "context", "values": ["16", "32"]} in found["differences"]["settings"]


def test_regressions_are_listed_by_fate(client: Client) -> None:
    history(*GOOD, 80, 80)
    (found,) = get(client, "regressions", fate="open")["regressions"]
    assert found["change"] == pytest.approx(-0.2)
    assert found["url"] == Regression.objects.get().get_absolute_url()
    assert get(client, "regressions", fate="recovered")["regressions"] == []


@pytest.mark.parametrize("digits", [18, 19, 23, 400])
def test_a_number_that_no_run_has_is_not_found_however_long(client: Client, digits: int) -> None:
    status, said, _ = refusal(client, f"runs/{'9' * digits}")
    assert status == 404 and "There is no" in said


@pytest.mark.parametrize(
    ("path", "query", "message", "field"),
    [
        ("runs", {"modle": "x"}, "“modle” is no parameter of this address; it takes", "modle"),
        ("runs", {"limit": "201"}, "limit: 201 is too many; a page has at most 200.", "limit"),
        ("runs", {"limit": "0"}, "greater than or equal to 1", "limit"),
        ("runs", {"cursor": "x"}, "cursor is 'x'", "cursor"),
        ("runs", {"cursor": "999999999999999999.1"}, "is no time", "cursor"),
        ("runs", {"since": "yesterday"}, "since: “yesterday” is no time; write 2026-01-31", "since"),
        ("runs", {"since": "9999-12-31T23:59:59-12:00"}, "since: That time is outside the years", "since"),
        ("runs", {"until": "0001-01-01T00:00:00+12:00"}, "until: That time is outside the years", "until"),
        ("runs", {"verified": "maybe"}, "Select a valid choice", "verified"),
        ("runs", {"sha": "a b"}, "Enter a valid value", "sha"),
        ("runs", {"configuration": str(1 << 63)}, "less than or equal", "configuration"),
        ("runs", {"model": "\x00"}, "Null characters are not allowed", "model"),
        ("series", {}, "configuration: This field is required.", "configuration"),
        (
            "series",
            {"configuration": "1", "until": "9999-12-31T23:59:59-12:00"},
            "until: That time is outside the years",
            "until",
        ),
        ("series", {"configuration": "1", "metric": "joy"}, "Select a valid choice", "metric"),
        ("comparisons", {"run": "1"}, "1 run is given; a comparison takes 2 to 6", "run"),
        ("comparisons", {"run": ["1", "x"]}, "“x” is no run", "run"),
        ("comparisons", {"run": ["1"] * 7}, "7 runs are given", "run"),
        ("badge.svg", {"configuration": "0"}, "greater than or equal to 1", "configuration"),
        ("runs/1", {"x": "1"}, "“x” is no parameter of this address; it takes none.", "x"),
    ],
)
def test_wrong_query_is_refused_with_the_parameter_and_the_value(
    client: Client, path: str, query: dict[str, Any], message: str, field: str | None
) -> None:
    status, said, named = refusal(client, path, **query)
    assert (status, named) == (400, field)
    assert message in said


def test_unknown_path_says_what_there_is(client: Client) -> None:
    status, message, _ = refusal(client, "nothing")
    assert status == 404 and "there are runs" in message
    assert refusal(client, "comparisons", run=["7", "8"])[:2] == (404, "There is no run 7, 8.")


@pytest.mark.parametrize("path", ["runs/1", "series", "comparisons", "badge.svg"])
def test_nothing_else_can_be_written(client: Client, path: str) -> None:
    assert client.post(f"/api/{path}").status_code == 405


@pytest.mark.parametrize("path", ["runs", "configurations", "regressions", "openapi.json"])
def test_pages_of_other_sites_may_read(client: Client, path: str) -> None:
    assert client.get(f"/api/{path}")["Access-Control-Allow-Origin"] == "*"
    asked = client.options(f"/api/{path}")
    assert (asked.status_code, asked["Access-Control-Allow-Methods"]) == (204, "GET, HEAD")


def test_no_other_page_may_be_read_from_elsewhere(client: Client) -> None:
    assert "Access-Control-Allow-Origin" not in client.get("/dashboard/")


def test_head_is_answered_as_get_is(client: Client) -> None:
    assert client.head("/api/runs").status_code == 200


def test_description_names_every_path_its_parameters_and_what_a_run_holds(client: Client) -> None:
    found = get(client, "openapi.json")
    assert set(found["paths"]) == {
        f"/api/{path}"
        for path in (
            "runs",
            "runs/{pk}",
            "configurations",
            "series",
            "comparisons",
            "regressions",
            "badge.svg",
        )
    }
    asked = {p["name"] for p in found["paths"]["/api/series"]["get"]["parameters"]}
    assert asked == {"configuration", "metric", "since", "until", "limit", "cursor"}
    run = found["components"]["schemas"]["Run"]["properties"]
    assert set(get_run(client)) == set(run)


def get_run(client: Client) -> dict[str, Any]:
    factories.stored()
    first: dict[str, Any] = get(client, "runs")["runs"][0]
    return first


def test_page_of_the_description_brings_its_own_scripts(client: Client) -> None:
    page = client.get("/api/docs").content.decode()
    assert "swagger-ui-bundle" in page and "https://" not in page


def test_badge_shows_the_newest_verified_speed_in_the_colour_of_its_standing(client: Client) -> None:
    configuration = history(*GOOD, 80, 81)
    response = client.get("/api/badge.svg", {"configuration": configuration.pk})
    assert response["Content-Type"] == "image/svg+xml"
    assert response["Cache-Control"] == "max-age=300"
    root = ElementTree.fromstring(response.content)  # noqa: S314 - our own
    assert root.attrib["aria-label"] == "test-model on numpy: 81.00 tok/s"
    assert b"#b3261e" in response.content


def test_badge_takes_a_label_and_escapes_it(client: Client) -> None:
    row = factories.stored()
    judge_configurations([row.configuration_id])
    response = client.get("/api/badge.svg", {"configuration": row.configuration_id, "label": "<b>&"})
    root = ElementTree.fromstring(response.content)  # noqa: S314
    assert root.attrib["aria-label"].startswith("<b>&: ")
    assert refusal(client, "badge.svg", configuration=999)[0] == 404


@pytest.mark.slow
@given(st.datetimes(timezones=st.just(UTC)), st.integers(1, 1 << 50))
def test_cursor_reads_what_it_wrote(created: Any, pk: int) -> None:
    assert Cursor.read(str(Cursor(created, pk))) == Cursor(created, pk)


def test_number_of_queries_does_not_grow(client: Client, django_assert_max_num_queries: Any) -> None:
    for context in range(1, 30):
        history(100, context=context)
    key = Measurement.objects.values_list("configuration", flat=True)[0]
    for path, query in (
        ("runs", {}),
        ("series", {"configuration": key}),
        ("configurations", {}),
        ("regressions", {}),
        ("badge.svg", {"configuration": key}),
        ("comparisons", {"run": [1, 2]}),
    ):
        with django_assert_max_num_queries(2):
            client.get(f"/api/{path}", query)

"""The first page: newest figures by hardware, model and backend, beside what others reach."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from dashboard.measurements.importing import Imported, import_files
from dashboard.models import Peer
from dashboard.regressions.services import judge_configurations
from engine.backends.base import BARRIER
from engine.measuring.measurement import MeasuredDevice
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/"
H200 = (MeasuredDevice("NVIDIA H200", 4800.0, 4500.0),)


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def shown(client: Client, query: str = "") -> list[tuple[str, str, list[float]]]:
    groups = client.get(f"{URL}?{query}").context["groups"]
    return [(g.model, g.backend, [r.newest.tok_s for r in g.rows]) for g in groups]


def marks(client: Client) -> dict[str, tuple[float, str]]:
    (group,) = client.get(URL).context["groups"]
    return {m.mark.kind: (m.mark.tok_s, m.mark.label) for m in group.rows[0].scale.marks}


def peer(**changes: object) -> Path:
    """A line of benchmarks/peers; never called outside tmp_path."""
    line = {"peer": "another engine", "model": "test-model", "context": 16, "device": "test device"}
    return Path(json.dumps({**line, "samples": [50.0, 51.0, 49.0], **changes}))


def add_peer(folder: Path, **changes: object) -> Imported:
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"
    path.write_text(str(peer(**changes)))
    return import_files(paths=[path])[0]


def test_empty_dashboard_says_how_to_get_a_first_run(client: Client) -> None:
    page = client.get(URL).content.decode()
    assert "No measurement is stored yet" in page
    assert "manage.py sweep cpu-quick" in page and "import_results" in page


def test_each_configuration_shows_its_newest_run(client: Client) -> None:
    factories.stored(tok_s=100, day=1)
    factories.stored(tok_s=110, day=2)
    factories.stored(tok_s=90, day=0)
    assert shown(client) == [("test-model", "numpy", [110])]


def test_groups_are_hardware_model_and_backend_the_newest_first_and_contexts_in_order(client: Client) -> None:
    factories.stored(tok_s=1, day=1, context=512)
    factories.stored(tok_s=2, day=2, context=64)
    factories.stored(tok_s=3, day=3, backend="cuda")
    factories.stored(tok_s=4, day=4, model="other")
    assert shown(client) == [
        ("other", "numpy", [4]),
        ("test-model", "cuda", [3]),
        ("test-model", "numpy", [2, 1]),
    ]


def test_a_group_with_many_configurations_links_to_the_rest(client: Client) -> None:
    for context in range(1, 8):
        factories.stored(context=context, day=context)
    page = client.get(URL).content.decode()
    assert "3 more configurations" in page
    assert "history/?model=test-model&amp;backend=numpy&amp;hardware=test%20device" in page


def test_all_figures_of_the_newest_run_are_there(client: Client) -> None:
    factories.stored(tok_s=100)
    page = text(client.get(URL).content.decode())
    for figure in ("100.0", "98.00 – 101.0, n = 5", "40.0", "12.50", "10.0", "n too small"):
        assert figure in page


def test_ceiling_is_the_measured_bandwidth_over_the_bytes_of_a_token(client: Client) -> None:
    factories.stored(tok_s=100, mbu=factories.Mbu(0.2, 0.4))
    assert marks(client)["ceiling"] == (pytest.approx(250), "allowed by the measured bandwidth")


def test_what_was_measured_with_barriers_takes_no_row_from_the_ordinary_runs(client: Client) -> None:
    for day, context in enumerate((16, 32, 64, 128)):
        factories.stored(tok_s=100 + day, day=day, context=context)
    barrier = replace(factories.result().settings, sync=BARRIER)
    factories.stored(tok_s=50, day=9, settings=barrier)
    assert shown(client) == [("test-model", "numpy", [100, 101, 102, 103])]


def test_ceiling_falls_back_on_the_datasheet_and_says_so(client: Client) -> None:
    factories.stored(tok_s=100, mbu=factories.Mbu(0.2, None))
    assert marks(client)["ceiling"] == (pytest.approx(500), "allowed by the datasheet bandwidth")


def test_unknown_bandwidth_has_no_ceiling(client: Client) -> None:
    factories.stored(mbu=factories.Mbu(None, None))
    assert "ceiling" not in marks(client)


def test_the_best_peer_on_the_same_hardware_model_and_context_is_a_mark(
    client: Client, tmp_path: Path
) -> None:
    factories.stored()
    for speed, changes in ((50.0, {}), (70.0, {"peer": "the best"}), (900.0, {"context": 17})):
        assert add_peer(tmp_path, **changes, samples=[speed]).added == 1
    assert marks(client)["peer"] == (70.0, "the best")


@pytest.mark.parametrize(
    "elsewhere", [{"device": "another device"}, {"model": "another-model"}, {"measures": "prefill"}]
)
def test_a_peer_measured_elsewhere_is_no_mark(
    client: Client, tmp_path: Path, elsewhere: dict[str, str]
) -> None:
    factories.stored()
    add_peer(tmp_path, **elsewhere)
    assert "peer" not in marks(client)


def test_a_published_figure_is_labelled_and_named_with_its_source(client: Client) -> None:
    factories.stored(model="laneformer-2b", devices=H200)
    assert marks(client)["published"] == (2100.0, "Kog, 8 x H200")
    page = text(client.get(URL).content.decode())
    assert "published by Kog, 8 x H200" in page
    assert re.search(
        r"Published, not measured here: Kog published 2,100 tok/s .* \(Kog Inference Engine", page
    )


@pytest.mark.parametrize("other", [{"model": "test-model", "devices": H200}, {"model": "laneformer-2b"}])
def test_a_figure_published_of_another_shape_or_device_is_no_mark(
    client: Client, other: dict[str, object]
) -> None:
    factories.stored(**other)
    assert "published" not in marks(client)
    assert "not measured here" not in client.get(URL).content.decode()


def test_trend_holds_the_last_runs_in_order(client: Client) -> None:
    for day in range(35):
        factories.stored(tok_s=100 + day, day=day)
    (group,) = client.get(URL).context["groups"]
    line = group.rows[0].trend
    assert (line.first, line.last, line.count) == (105, 134, 30)


def test_wrong_tokens_are_flagged(client: Client) -> None:
    factories.stored(verified=factories.Verified("a reference", False, None))
    assert ">differs<" in client.get(URL).content.decode()


@pytest.mark.parametrize(("query", "models"), [("backend=cuda", ["b"]), ("model=a", ["a"]), ("", ["a", "b"])])
def test_filter_in_the_url_chooses_groups(client: Client, query: str, models: list[str]) -> None:
    factories.stored(model="a", day=1)
    factories.stored(model="b", day=2, backend="cuda")
    assert [group[0] for group in shown(client, query)] == models


def test_filter_that_makes_no_sense_is_named_and_shows_nothing(client: Client) -> None:
    factories.stored()
    response = client.get(f"{URL}?backend=abacus")
    assert response.status_code == 400
    assert response.context["groups"] == []
    assert "No run has the backend “abacus”" in response.content.decode()


def test_number_of_queries_does_not_grow(
    client: Client, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    for day in range(40):
        factories.stored(
            day=day, context=1 + day % 5, model=f"m{day % 4}", backend="cuda" if day % 2 else "cpu"
        )
    with django_assert_max_num_queries(8):
        client.get(URL)


def test_page_needs_no_inline_style_or_script(client: Client) -> None:
    factories.stored()
    page = client.get(URL).content.decode()
    assert not re.search(r"\sstyle=|\son\w+=|<style", page)


def test_peers_are_stored_once(tmp_path: Path) -> None:
    path = tmp_path / "peers.jsonl"
    path.write_text(f"{peer()}\n\n{peer(peer='x')}\n")
    first, second = (import_files(paths=[path])[0] for _ in range(2))
    assert (first.added, first.known, second.added, second.known) == (2, 0, 0, 2)
    found = Peer.objects.get(name="another engine")
    assert (found.tok_s, found.samples, found.source) == (50.0, 3, "peers.jsonl")
    assert found.ci_low <= 50.0 <= found.ci_high


def test_a_peer_of_a_version_that_does_not_know_what_is_measured_is_one_of_decode() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO dashboard_peer"
            " (name, model, hardware, context, tok_s, ci_low, ci_high, samples, source, digest)"
            " VALUES ('p', 'm', 'h', 16, 2.0, 1.0, 3.0, 3, 's', 'd')"
        )
    assert Peer.objects.get().measures == Peer.Measures.DECODE


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "line 2"),
        ("[]", "a peer is a JSON object, not list"),
        ("{}", "the field 'samples' is missing"),
        (str(peer(samples=[])), "there are no samples"),
        (str(peer(samples=[0.0])), "peer_interval_holds_the_median"),
        (str(peer(samples=["fast"])), "a field has the wrong form"),
        (str(peer(measures="training")), "'training' is not a valid choice"),
        (str(peer(context=-1)), "greater than or equal to 0"),
        (str(peer(peer="x" * 201)), "at most 200 characters"),
    ],
)
def test_a_peer_that_makes_no_sense_is_refused_with_its_line_and_nothing_is_stored(
    tmp_path: Path, line: str, reason: str
) -> None:
    path = tmp_path / "peers.jsonl"
    path.write_text(f"{peer()}\n{line}\n")
    (outcome,) = import_files(paths=[path])
    assert "peers.jsonl, line 2" in outcome.error and reason in outcome.error
    assert not Peer.objects.exists()


def test_each_configuration_carries_the_badge_of_the_regression_rule_once_there_are_enough_points(
    client: Client,
) -> None:
    for day in range(6):
        factories.stored(day=day, context=16)
    steady = factories.stored(day=6, context=16)
    short = factories.stored(day=6, context=32)
    judge_configurations([steady.configuration_id, short.configuration_id])
    page = client.get("/dashboard/").content.decode()
    assert 'class="standing steady"' in page
    assert 'class="standing insufficient"' not in page

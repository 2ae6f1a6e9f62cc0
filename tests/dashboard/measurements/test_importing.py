"""Measurement files: once each, whole or not at all, and a clear word about the bad ones."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dashboard.measurements.importing import import_files
from dashboard.measurements.ingest import digest_of
from dashboard.measurements.services import record_measurement
from dashboard.models import Configuration, Measurement
from engine.errors import MeasurementError
from tests.dashboard import factories

pytestmark = pytest.mark.django_db

speeds = st.floats(0.5, 1e5)
documents = st.builds(
    factories.document,
    tok_s=speeds,
    day=st.integers(0, 300),
    model=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60),
    context=st.integers(1, 1 << 20),
)


def write(path: Path, data: Any) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


@pytest.mark.slow
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(documents, max_size=4), st.randoms())
def test_import_twice_in_any_order_equals_import_once(
    tmp_path: Path, found: list[dict[str, Any]], random: Any
) -> None:
    Measurement.objects.all().delete()
    distinct = {digest_of(d) for d in found}
    first = import_files(paths=[write(tmp_path / "a.json", found)])[0]
    again = copy.deepcopy(found)
    random.shuffle(again)
    second = import_files(paths=[write(tmp_path / "b.json", again)])[0]
    assert (first.error, first.added) == ("", len(distinct))
    assert (second.error, second.added, second.known) == ("", 0, len(found))
    assert set(Measurement.objects.values_list("digest", flat=True)) == distinct


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents)
def test_exported_document_is_known_when_it_is_imported(tmp_path: Path, document: dict[str, Any]) -> None:
    row, _ = record_measurement(document=document, source="x")
    row.refresh_from_db()
    outcome = import_files(paths=[write(tmp_path / "out.json", row.document)])[0]
    assert (outcome.added, outcome.known) == (0, 1)


@pytest.mark.parametrize("part", ["samples", "sampling"])
def test_field_that_a_later_version_added_does_not_make_an_old_file_new(tmp_path: Path, part: str) -> None:
    old = factories.document()
    (old if part == "samples" else old["settings"]).pop(part)
    path = write(tmp_path / "old.json", old)
    import_files(paths=[path])
    assert import_files(paths=[path])[0].known == 1
    assert Measurement.objects.get().document == old


def test_configurations_are_shared_by_runs_that_differ_only_in_time() -> None:
    factories.stored(day=1)
    factories.stored(day=2)
    factories.stored(day=3, context=99)
    assert Configuration.objects.count() == 2


def test_file_with_one_bad_measurement_adds_none(tmp_path: Path) -> None:
    bad = factories.document(day=2)
    del bad["verified"]
    outcome = import_files(paths=[write(tmp_path / "m.json", [factories.document(), bad])])[0]
    assert "verified" in outcome.error
    assert not Measurement.objects.exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "a measurement is a JSON object"),
        ('{"schema": 9}', "schema is 9"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_file_that_is_no_measurement_says_why(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    outcome = import_files(paths=[path])[0]
    assert message in outcome.error and str(path) in outcome.error


@pytest.mark.parametrize(
    ("where", "value", "message"),
    [
        (("created",), "yesterday", "created is 'yesterday'"),
        (("decode", "tok_s", "ci95"), [3.0, 2.0], "the lower end comes first"),
        (("decode", "tok_s", "median"), -1.0, "must be positive"),
        (("ttft_ms", "p50"), float("nan"), "p50 is nan"),
        (("model", "name"), "x" * 300, "at most 200 characters"),
        (("model", "name"), "a\0b", "NUL"),
        (("backend",), "", "backend"),
        (("settings", "context"), "many", "context"),
        (("settings", "context"), -5, "context"),
    ],
)
def test_value_that_cannot_be_true_is_refused(where: tuple[str, ...], value: Any, message: str) -> None:
    document = factories.document()
    inner = document
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    with pytest.raises(MeasurementError, match=message):
        record_measurement(document=document, source="x")
    assert not Measurement.objects.exists()


# The command -----------------------------------------------------------------------------------------
def run_command(*files: Path) -> tuple[str, str, str]:
    """What it wrote to stdout and stderr, and the error that it ended with."""
    out, err = io.StringIO(), io.StringIO()
    error = ""
    try:
        call_command("import_results", *files, stdout=out, stderr=err)
    except CommandError as failed:
        error = str(failed)
    return out.getvalue(), err.getvalue(), error


def test_command_writes_one_line_a_file_and_goes_on_after_a_bad_one(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("nonsense")
    good = write(tmp_path / "good.json", [factories.document(), factories.document(day=1)])
    out, err, error = run_command(bad, good, tmp_path / "absent.json")
    assert out == f"{good}: 2 added, 0 already known\n"
    assert err.count("\n") == 2 and f"{bad} is not JSON" in err and "No such file" in err
    assert "2 of 3 files could not be imported" in error
    assert Measurement.objects.count() == 2


def test_command_without_files_reads_the_committed_benchmarks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dashboard.management.commands import import_results

    write(tmp_path / "m.json", factories.document())
    monkeypatch.setattr(import_results, "BENCHMARKS", tmp_path)
    assert "1 added" in run_command()[0]


@pytest.mark.slow
def test_committed_benchmarks_can_all_be_imported() -> None:
    from dashboard.management.commands.import_results import BENCHMARKS

    outcomes = import_files(paths=sorted(BENCHMARKS.glob("*.json")))
    assert [o.error for o in outcomes if o.error] == []


@pytest.mark.slow
def test_a_committed_trace_is_kept_with_its_run_once() -> None:
    """The real ones: a token on four H200, SM by SM."""
    benchmarks = Path(__file__).resolve().parents[3] / "benchmarks"
    paths = [benchmarks / "laneformer-2b-h200-x4.json", *sorted((benchmarks / "traces").iterdir())]
    first, again = import_files(paths=paths), import_files(paths=paths)
    assert [(one.error, one.added) for one in first] == [("", 2), ("", 1)]
    assert [(one.added, one.known) for one in again] == [(0, 2), (0, 1)]
    run = Measurement.objects.get(trace__isnull=False)
    assert (run.document["settings"]["context"], len(run.document["devices"])) == (256, 4)


def test_a_trace_without_its_measurement_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "lost.trace.json.gz"
    path.write_bytes(b"")
    (outcome,) = import_files(paths=[path])
    assert "belongs to lost.json, which was not imported" in outcome.error

"""Traces of runs: imported or sent by a worker, checked, kept, handed out."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from dashboard.models import Measurement, Trace
from dashboard.traces import store
from dashboard.traces.store import import_trace, store_trace
from engine.backends.base import TraceSpan
from engine.errors import MeasurementError
from engine.measuring.trace import chrome_trace, pack_trace
from tests.dashboard import factories
from tests.dashboard.runs.test_run_page import page_of, text

pytestmark = pytest.mark.django_db

SPANS = [
    TraceSpan("qkv 0", 0, 0, 10.0, 5.0),
    TraceSpan("qkv 0", 0, 1, 11.0, 3.0),
    TraceSpan("attention 0", 0, 1, 15.0, 2.5, "wait_local"),
]
TRACE = chrome_trace(SPANS, devices=["test device"])


@pytest.fixture
def row() -> Measurement:
    return factories.stored()


def keep(row: Measurement, data: bytes | None = None) -> Trace:
    return store_trace(measurement=row, data=pack_trace(TRACE) if data is None else data, source="test")


def test_trace_is_summed_up_when_it_is_stored(row: Measurement) -> None:
    stored = keep(row)
    assert (stored.spans, stored.tracks, stored.duration_us) == (3, 2, 7.5)


def test_second_trace_takes_the_place_of_the_first(row: Measurement) -> None:
    keep(row)
    keep(row, pack_trace(chrome_trace(SPANS[:1])))
    assert Trace.objects.get().spans == 1


def test_what_is_no_trace_is_refused_and_leaves_nothing(row: Measurement) -> None:
    with pytest.raises(MeasurementError, match="no Chrome trace"):
        keep(row, b"[1, 2]")
    assert not Trace.objects.exists()


def test_trace_of_another_device_is_refused(row: Measurement) -> None:
    other = pack_trace(chrome_trace(SPANS, devices=["NVIDIA H200"]))
    with pytest.raises(
        MeasurementError, match=r"recorded on NVIDIA H200; run .* was measured on test device"
    ):
        keep(row, other)
    assert not Trace.objects.exists()


def test_trace_of_another_speed_is_refused(row: Measurement) -> None:
    slow = [TraceSpan("qkv 0", 0, 0, 0.0, 150_000.0)]
    with pytest.raises(MeasurementError, match=r"takes 150,000 µs a token; run .* took 10,000"):
        keep(row, pack_trace(chrome_trace(slow, devices=["test device"])))


def test_trace_of_several_tokens_may_take_as_long_as_they_do(row: Measurement) -> None:
    tokens = [TraceSpan("sample", 0, 0, 10_000.0 * n, 9_000.0) for n in range(20)]
    assert keep(row, pack_trace(chrome_trace(tokens, devices=["test device"]))).spans == 20


def test_trace_that_is_too_large_to_keep_is_refused(
    row: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trace, "MAX_BYTES", 100)
    with pytest.raises(MeasurementError, match="record fewer tokens"):
        keep(row)


def test_file_that_is_too_large_is_not_read(
    row: Measurement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(pack_trace(TRACE))
    monkeypatch.setattr(store, "MAX_FILE_BYTES", 10)
    with pytest.raises(MeasurementError, match="at most 0 are read"):
        import_trace(measurement=row, path=path)


def test_page_gets_the_trace_as_it_is_stored(client: Client, row: Measurement) -> None:
    keep(row)
    answer = client.get(trace_url(row), headers={"Accept-Encoding": "gzip"})
    assert answer.headers.get("Content-Encoding") == "gzip"
    assert blocks(json.loads(gzip.decompress(answer.content))) == blocks(TRACE)


def test_trace_is_not_unpacked_for_whoever_cannot_read_gzip(client: Client, row: Measurement) -> None:
    keep(row)
    answer = client.get(trace_url(row), headers={"Accept-Encoding": "identity"})
    assert answer.status_code == 406
    assert "?download" in answer.content.decode()


def test_unchanged_trace_is_not_sent_twice(client: Client, row: Measurement) -> None:
    keep(row)
    tag = client.get(trace_url(row), headers={"Accept-Encoding": "gzip"})["ETag"]
    assert client.get(trace_url(row), headers={"If-None-Match": tag}).status_code == 304


def test_download_is_a_file_that_perfetto_opens(client: Client, row: Measurement) -> None:
    keep(row)
    answer = client.get(trace_url(row) + "?download")
    assert answer["Content-Disposition"] == f'attachment; filename="run-{row.pk}.trace.json.gz"'
    assert blocks(json.loads(gzip.decompress(answer.content))) == blocks(TRACE)


def test_run_without_a_trace_has_none_to_hand_out_and_says_how_to_get_one(
    client: Client, row: Measurement
) -> None:
    assert client.get(trace_url(row)).status_code == 404
    assert f"import_trace {row.pk} FILE" in page_of(client, row)


def test_page_with_a_trace_shows_where_it_is_drawn(client: Client, row: Measurement) -> None:
    keep(row)
    page = page_of(client, row)
    assert f'data-waterfall="{trace_url(row)}"' in page
    assert "3 spans on 2 tracks" in text(page)


def test_command_keeps_a_file_with_a_run(row: Measurement, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps(TRACE))
    call_command("import_trace", str(row.pk), str(path))
    assert Trace.objects.get(pk=row.pk).source == "t.json"
    assert f"Run {row.pk}: 3 spans on 2 tracks" in capsys.readouterr().out


def test_command_says_what_is_wrong(row: Measurement, tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"There is no run 999"):
        call_command("import_trace", "999", str(tmp_path / "t.json"))
    with pytest.raises(CommandError, match="cannot be read"):
        call_command("import_trace", str(row.pk), str(tmp_path / "t.json"))


def trace_url(row: Measurement) -> str:
    return f"/dashboard/runs/{row.pk}/trace.json"


def blocks(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]

"""What is written: at once, by model and number of devices, and so that it can be read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.base import TraceSpan
from engine.measuring.measurement import read_measurements
from engine.measuring.trace import unpack_trace
from tests.tools.bench_node.measured import measured
from tools.bench_exchange.measure import ExchangeTime
from tools.bench_node.correctness import Check
from tools.bench_node.results import Results, read_results, short_name, thin_spans


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(tmp_path / "out", "h200")


def test_each_point_is_on_disk_as_soon_as_it_is_added(results: Results) -> None:
    path = results.add(measured(context=256))
    assert path.name == "laneformer-2b-h200-x4.json"
    assert [m.settings.context for m in read_measurements(path)] == [256]
    results.add(measured(context=4000))
    assert [m.settings.context for m in read_measurements(path)] == [256, 4000]


def test_models_and_numbers_of_devices_have_files_of_their_own(results: Results) -> None:
    names = {results.add(measured(model, n)).name for model in ("m", "m-plain") for n in (1, 4)}
    assert names == {"m-h200-x1.json", "m-h200-x4.json", "m-plain-h200-x1.json", "m-plain-h200-x4.json"}


def test_what_was_written_is_read_again(results: Results) -> None:
    results.add(measured())
    time = ExchangeTime(3072, 4, 1.2, 3.0, (1.2, 1.3), (3.0,), 22.5, "NCCL 2.28.9")
    check = Check("laneformer-2b", 4, True, True, "48 of 48 tokens equal")
    results.write_summary(4, [check], [time], {"measure": 12.34}, {})
    found, exchanges = read_results(results.out)
    assert found == [measured()]
    assert exchanges == [time]


def test_a_trace_of_many_sms_keeps_every_nth_of_each_device() -> None:
    spans = [TraceSpan("qkv", d, t, float(i), 1.0) for d in (0, 1) for t in range(12) for i in range(5)]
    kept = thin_spans(spans, 60)
    assert {(s.device, s.track) for s in kept} == {(d, t) for d in (0, 1) for t in (0, 2, 4, 6, 8, 10)}
    assert thin_spans(spans, len(spans)) == spans


def test_a_trace_is_one_that_the_dashboard_takes(results: Results) -> None:
    path = results.add_trace(measured(), [TraceSpan("qkv 0", 3, 0, 1.0, 2.0, "wait_peer")])
    events = unpack_trace(path.read_bytes())["traceEvents"]
    assert [e["name"] for e in events if e["ph"] == "X"] == ["qkv 0"]


@pytest.mark.parametrize(
    ("device", "name"), [("NVIDIA H200", "h200"), ("NVIDIA H100 PCIe", "h100-pcie"), ("AMD EPYC", "cpu")]
)
def test_files_are_named_by_the_hardware(device: str, name: str) -> None:
    assert short_name(device) == name

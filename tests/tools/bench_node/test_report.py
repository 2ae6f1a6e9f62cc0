"""The tables: what must be reached stands beside what was, only where it was asked for."""

from __future__ import annotations

import pytest

from tests.tools.bench_node.measured import measured
from tools.bench_node.correctness import Check
from tools.bench_node.report import floor, must, report, wait_peer_share


def cells(text: str, model: str) -> list[list[str]]:
    """Rows of the last table."""
    last = text.split("\n\n")[-1]
    return [line.split() for line in last.splitlines() if line.startswith(model + " ")]


def test_speeds_come_last_by_number_of_devices_with_must_and_floor() -> None:
    text = report([measured(devices=4), measured(devices=1, tok_s=900.0)], [], [], {})
    one, four = cells(text, "laneformer-2b")
    assert one[1:10] == ["1", "2", "256", "1000", "900", "895", "to", "905", "-"]
    assert four[1:11] == ["4", "2", "256", "1000", "3,000", "2,995", "to", "3,005", "2,800", "4,000"]


@pytest.mark.parametrize(
    "other", [measured(device="NVIDIA H100"), measured(context=4000), measured("laneformer-2b-delay0")]
)
def test_what_was_asked_of_one_setting_is_not_asked_of_another(other) -> None:
    assert must(measured()) == 2800.0
    assert must(other) is None


def test_the_floor_is_what_all_devices_read_over_the_bytes_of_a_token() -> None:
    assert floor(measured(devices=8)) == 8000.0


def test_waiting_for_peers_is_a_share_of_the_profiled_token() -> None:
    assert wait_peer_share(measured(wait_peer=100.0)) == 0.5
    assert wait_peer_share(measured()) == 0.0


def test_what_failed_or_did_not_run_is_in_the_report() -> None:
    checks = [Check("laneformer-2b", 4, False, False, "3 of 48 tokens equal")]
    text = report(
        [], checks, [], {"laneformer-2b x4, context 256": "the limit of 10 s was reached before it"}
    )
    assert "NO" in text
    assert "laneformer-2b x4, context 256: the limit of 10 s was reached before it" in text

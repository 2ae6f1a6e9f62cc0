"""A peer in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench_peers.peer import PeerProcess, PeerUnavailable

DRIVER = "tests.tools.bench_peers.scripted_driver"


def test_a_driver_says_what_it_is_and_answers_each_turn(tmp_path: Path) -> None:
    peer = PeerProcess(DRIVER, [], "a source", tmp_path / "log").wait()
    try:
        assert (peer.facts.name, peer.facts.more, peer.source) == (
            "scripted 1.0",
            {"check": "none"},
            "a source",
        )
        assert (peer.measure(2), peer.measure(1)) == ([100.0, 100.0], [100.0])
    finally:
        peer.close()


def test_a_driver_that_cannot_run_here_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="no GPU here"):
        PeerProcess(DRIVER, ["ends at once"], "", tmp_path / "log").wait()


def test_a_driver_that_breaks_down_in_a_turn_is_quoted(tmp_path: Path) -> None:
    peer = PeerProcess(DRIVER, ["ends in a turn"], "", tmp_path / "log").wait()
    with pytest.raises(PeerUnavailable, match="the kernel hung"):
        peer.measure(1)

"""What the table of several streams says."""

from __future__ import annotations

import pytest

from engine.backends.base import Job, Token
from engine.measuring.point import Point
from tests.engine.scripted import ScriptedBackend, steady, tiny_model
from tools.bench_streams import Contestant, Sample, report

MODEL = tiny_model()


def test_streams_together_are_held_against_one_on_a_single_row() -> None:
    samples = {0: [Sample(100.0, 10.0)], 1: [Sample(97.0, 10.0)], 4: [Sample(70.0, 14.0)]}
    lone, rows, four = report(samples, [1, 4]).splitlines()[1:]
    assert "must" not in lone
    assert "0.97" in rows and "0.98 MISSED" in rows
    assert "280.0" in four and "2.80" in four and "2.5 reached" in four and four.endswith("2.86")


def test_a_stream_whose_tokens_depend_on_the_others_ends_the_comparison() -> None:
    def odd_beside_others(job: Job) -> list[Token]:
        return [Token(t.id + (job.max_tokens > 8), t.t_ns) for t in steady(job)]

    contestant = Contestant(
        ScriptedBackend(MODEL.config, odd_beside_others, rows=2), MODEL, Point(16, 8, 1, streams=2)
    )
    contestant.run(1)
    with pytest.raises(SystemExit, match="stream 1 of 2 has other tokens"):
        contestant.run(2)

"""The sums of the web-path measurement, and the measurement itself in small."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tools.web_path_figures import Stream, figures, summary

ROOT = Path(__file__).resolve().parents[2]
MS = 1_000_000
GAP_NS = 1e9 / 3000


def stream(*frames: tuple[float, int, int], burst: int = 1) -> Stream:
    """Frames as (milliseconds after the first token was due, tokens before, tokens)."""
    found = Stream(first_ns=1000 * MS)
    for at_ms, before, count in frames:
        due = -(-(before + count - 1) // burst) * burst * GAP_NS
        found.arrivals.append((1000 * MS + round(at_ms * MS), before, count, int(due / 1000)))
    return found


def test_a_token_waits_for_its_frame_and_the_frame_for_the_path():
    found = figures([stream((2.0, 0, 1), (12.0, 1, 30))], GAP_NS, 1)
    assert found.frame_ms == pytest.approx([2.0, 2.0], abs=0.001)
    assert found.token_ms[0] == pytest.approx(2.0)
    assert found.token_ms[1] == pytest.approx(12.0 - 1 / 3)
    assert found.token_ms[-1] == pytest.approx(2.0)
    assert found.tokens_per_frame == 15.5


def test_tokens_of_a_burst_are_due_together():
    found = figures([stream((1.0, 0, 1), (17.0, 1, 48), burst=48)], GAP_NS, 48)
    assert found.token_ms[1:] == pytest.approx([1.0] * 48)


def test_the_frame_rate_is_that_of_one_stream():
    one = stream(*((i * 10.0, i, 1) for i in range(101)))
    assert figures([one, one, one], GAP_NS, 1).frames_per_s == pytest.approx(100.0)


def test_percentiles_are_told_with_their_spread_over_the_runs():
    runs = [
        figures([stream(*((i * 8.0 + slow, i * 24, 24) for i in range(400)))], GAP_NS, 1) for slow in (1, 3)
    ]
    found = summary(runs, 1, 1)
    assert found["frame_p50_ms"]["median"] == pytest.approx(sum(found["frame_p50_ms"]["samples"]) / 2)
    assert found["frame_p50_ms"]["samples"][1] - found["frame_p50_ms"]["samples"][0] == pytest.approx(2.0)
    assert (found["token_n"], found["frame_n"]) == (2 * 400 * 24, 800)


@pytest.mark.parametrize(
    ("frames", "complaint"),
    [
        ([{"type": "tokens", "seq": 2, "n": 1, "text": "", "t_us": 0}], "begins at token 2, but 0 have come"),
        ([{"type": "error", "code": "busy", "message": "no"}], "busy: no"),
        (
            [{"type": "done", "finish_reason": "length", "timings": {"completion_tokens": 9}}],
            "with 0 tokens received",
        ),
        (
            [{"type": "done", "finish_reason": "stop", "timings": {"completion_tokens": 0}}],
            "ended by stop",
        ),
    ],
)
def test_a_lost_or_doubled_token_is_an_error(frames, complaint):
    found = Stream(align_ns=400 * MS)
    for frame in frames:
        found.add(frame, 0)
    assert complaint in found.error
    assert found.ended.is_set()


@pytest.mark.slow
def test_the_path_is_measured_from_worker_to_websocket(tmp_path):
    out = tmp_path / "web.json"
    flags = ["--streams", "1", "3", "--seconds", "1", "--repeats", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "tools.measure_web_path", *flags],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, three = json.loads(out.read_text())["results"]
    assert (one["token_n"], three["token_n"]) == (3000, 9000)
    assert 0 < one["frame_p50_ms"]["median"] < one["token_p50_ms"]["median"] < 1000
    assert set(one["busy_cores"]) == {"redis", "daphne", "workers", "client", "machine"}

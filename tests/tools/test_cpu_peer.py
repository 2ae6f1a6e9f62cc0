"""llama.cpp's rows come out of the run that our own figure comes from, one for each place of the cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools import cpu_peer
from tools.cpu_peer import rows

NEAR, FAR = 48.0, 255.0


def sample(value: float, before_ns: float, after_ns: float, name: str = "theirs") -> dict[str, Any]:
    return {"name": name, "value": value, "before_ns": before_ns, "after_ns": after_ns}


def document(*samples: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": {"name": "smollm2-135m"},
        "settings": {"context": 256},
        "devices": [{"name": "AMD EPYC"}],
        "environment": {"peer": {"version": "0.3.36", "samples": list(samples)}},
    }


def test_each_placement_has_a_row_of_its_own_timings() -> None:
    near = [sample(value, NEAR, NEAR) for value in (140.0, 150.0, 145.0, 145.0, 145.0)]
    far = [sample(130.0, FAR, FAR)] * 5
    together, apart = rows(document(*near, *far, sample(160.0, NEAR, NEAR, "ours")))
    assert (together["tok_s"], together["samples"]) == (145.0, [140.0, 150.0, 145.0, 145.0, 145.0])
    assert together["peer"].endswith("cores on one die")
    assert (apart["tok_s"], apart["samples"]) == (130.0, [130.0] * 5)
    assert (apart["model"], apart["context"], apart["device"]) == ("smollm2-135m", 256, "AMD EPYC")


def test_timings_during_which_the_cores_were_moved_are_in_no_row() -> None:
    assert not list(rows(document(*[sample(150.0, NEAR, FAR), sample(150.0, FAR, NEAR)] * 5)))


def test_a_placement_of_four_timings_has_no_row() -> None:
    assert not list(rows(document(*[sample(150.0, NEAR, NEAR)] * 4)))


MOVED = json.dumps(document(sample(150.0, NEAR, FAR)))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ("[]", "has no timings of the peer"),
        ("{}", "has no timings of the peer (KeyError('environment'))"),
        (MOVED, "5 timings at no place of the cores"),
    ],
)
def test_a_file_without_the_peer_is_refused_in_one_sentence_and_nothing_is_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    complaint: str,
) -> None:
    monkeypatch.setattr(cpu_peer, "ROWS", tmp_path / "cpu.jsonl")
    file = tmp_path / "measured.json"
    if text is not None:
        file.write_text(text)
    assert cpu_peer.main([str(file)]) == 2
    said = capsys.readouterr().err
    assert complaint in said and said.count("\n") == 1
    assert not cpu_peer.ROWS.exists()


def test_rows_are_written_a_line_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_peer, "ROWS", tmp_path / "cpu.jsonl")
    file = tmp_path / "measured.json"
    file.write_text(json.dumps(document(*[sample(140.0, NEAR, NEAR), sample(130.0, FAR, FAR)] * 5)))
    assert cpu_peer.main([str(file)]) == 0
    assert [json.loads(line)["tok_s"] for line in cpu_peer.ROWS.read_text().splitlines()] == [140.0, 130.0]

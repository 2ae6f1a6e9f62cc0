"""llama.cpp's rows come out of the run that our own figure comes from, one for each place of the cores."""

from __future__ import annotations

from typing import Any

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
    near = [sample(value, NEAR, NEAR) for value in (140.0, 150.0, 145.0)]
    together, apart = rows(document(*near, sample(130.0, FAR, FAR), sample(160.0, NEAR, NEAR, "ours")))
    assert (together["tok_s"], together["samples"]) == (145.0, [140.0, 150.0, 145.0])
    assert together["peer"].endswith("cores on one die")
    assert (apart["tok_s"], apart["samples"]) == (130.0, [130.0])
    assert (apart["model"], apart["context"], apart["device"]) == ("smollm2-135m", 256, "AMD EPYC")


def test_timings_during_which_the_cores_were_moved_are_in_no_row() -> None:
    assert not list(rows(document(sample(150.0, NEAR, FAR), sample(150.0, FAR, NEAR))))

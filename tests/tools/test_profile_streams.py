"""What the profile of several streams looks like on a terminal."""

from __future__ import annotations

from engine.backends.cuda.profile import LaunchProfile
from engine.timings import PhaseTime
from tools.profile_streams import report


def of(requests: int, wait: float) -> LaunchProfile:
    phases = {"embed": PhaseTime(0.0), "qkv": PhaseTime(2.0, wait, 0.5), "head": PhaseTime(4.0, 1.0)}
    return LaunchProfile(requests, 200, phases, {"qkv": 0.25, "head": 1.5})


def test_each_phase_has_its_wait_work_and_starvation_for_each_number_of_streams() -> None:
    lines = report({1: of(1, 3.0), 4: of(4, 7.0)}).splitlines()

    assert lines[0].split() == ["phase", "alone", "4", "streams"]
    assert [line.split() for line in lines if line.startswith(("qkv", "all"))] == [
        ["qkv", "3.5,", "2.0", "(0.2)", "7.5,", "2.0", "(0.2)"],
        ["all", "4.5,", "6.0", "(1.8)", "8.5,", "6.0", "(1.8)"],
    ]

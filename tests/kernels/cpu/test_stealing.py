"""Units of a phase are shared by a pair of threads, whoever is slow."""

from __future__ import annotations

import subprocess
from pathlib import Path

from engine.backends.cpu.build import SOURCES, compiler

UNITS = 40
"""Of each thread."""


def test_what_a_slow_thread_has_not_begun_its_partner_computes(tmp_path: Path) -> None:
    program = compiler()
    assert program is not None, "the kernels need a C++ compiler: install g++"
    binary = tmp_path / "stealing"
    source = Path(__file__).with_name("stealing.cpp")
    flags = ["-std=c++17", "-O1", "-pthread", f"-I{SOURCES}"]
    subprocess.run([program, *flags, str(source), "-o", str(binary)], check=True, timeout=120)
    done = subprocess.run([binary], capture_output=True, text=True, check=True, timeout=180)
    phases = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]

    assert [missing for _, _, missing in phases] == [0] * 6
    assert all(first + second >= 2 * UNITS for first, second, _ in phases)
    for first, second, _ in phases[1::2]:
        assert first > UNITS
        assert 1 <= second < UNITS

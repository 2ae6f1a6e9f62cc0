"""The compiler holds the library to what Python declares."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.backends.cpu import contract
from engine.backends.cpu.build import compiler


def compiles(header: str, folder: Path) -> bool:
    program = compiler()
    assert program is not None
    (folder / "contract.h").write_text(header)
    command = [program, "-std=c++17", "-fsyntax-only", "-x", "c++", str(folder / "contract.h")]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_compiler_lays_the_structs_out_as_the_caller_does(tmp_path: Path) -> None:
    assert compiles(contract.text(), tmp_path)


@pytest.mark.parametrize(
    ("declared", "changed"),
    [
        ("  int32_t top_k;", "  int64_t top_k;"),
        ("  float min_p;\n", ""),
        ("  uint64_t seed;", "  float seed;"),
    ],
)
def test_a_member_that_differs_does_not_compile(tmp_path: Path, declared: str, changed: str) -> None:
    header = contract.text()
    assert declared in header
    assert not compiles(header.replace(declared, changed), tmp_path)

"""The C interface under random use, watched by the compiler's sanitizers, for a bounded time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.backends.cpu.build import SOURCES, compiler, runnable, sources, write_contract
from tests.nightly import at_night

EACH_TIME_S, EACH_NIGHT_S = 4, 30
COMPILE_S = 900
HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(COMPILE_S + 300)
@pytest.mark.parametrize(
    ("sanitizer", "seconds"),
    [
        ("address,undefined", EACH_TIME_S),
        ("thread", EACH_TIME_S),
        at_night("address,undefined", EACH_NIGHT_S),
        at_night("thread", EACH_NIGHT_S),
    ],
)
def test_random_use_breaks_no_promise(sanitizer: str, seconds: int, tmp_path: Path) -> None:
    program = compiler()
    assert program is not None, "the sanitizers need a C++ compiler: install g++"
    binary, whole = tmp_path / "exercise", tmp_path / "whole.cpp"
    # One unit in place of fourteen: headers are read and templates made once, in half of the time.
    whole.write_text("".join(f'#include "{source}"\n' for source in (HERE / "exercise.cpp", *sources())))
    # The widest vectors of this machine, and words in place of vectors for the thread sanitizer (mailbox.h).
    subprocess.run(
        [
            program,
            "-std=c++17",
            "-O0",  # built in a third of the time of -O1, which is most of a test
            "-g1",
            "-ffp-contract=fast",
            f"-march={runnable()[0].march}",
            *runnable()[0].extensions,
            "-Wno-psabi",
            f"-fsanitize={sanitizer}",
            "-fno-sanitize-recover=all",
            "-pthread",
            f"-I{SOURCES}",
            f"-I{write_contract(tmp_path)}",
            str(whole),
            "-o",
            str(binary),
        ],
        check=True,
        capture_output=True,
        timeout=COMPILE_S,
    )
    use = [binary, "1", str(seconds)]
    done = subprocess.run(use, capture_output=True, text=True, check=False, timeout=60 + 10 * seconds)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout.split()[0]) >= 1

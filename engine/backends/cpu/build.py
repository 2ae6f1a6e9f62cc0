"""Compiles the CPU monokernel, once for each instruction set that this kind of machine may have.

    python -m engine.backends.cpu.build {best,distinct,all}     builds what is out of date, and says so

The backend chooses at run time, and compiles what is missing then.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from engine.backends.cpu import contract
from engine.errors import BackendUnavailable
from engine.measuring.bandwidth import usable_cores
from engine.processor import processor_features
from engine.settings import build_dir

SOURCES = Path(__file__).resolve().parents[3] / "kernels" / "cpu"
BUILD = build_dir() / "cpu"
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-Wall",
    "-Wextra",
    "-Wno-maybe-uninitialized",  # GCC 12 warns inside its own intrinsics
    "-Wno-uninitialized",  # as above
    "-Wno-psabi",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
)
LARGE = ("products_", "worker_attention")
"""How the names of the sources begin that take seconds each to compile, by themselves."""
TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Target:
    """One build: its name, the compiler's flag, and the processor features that it needs."""

    name: str
    march: str
    needs: frozenset[str]
    extensions: tuple[str, ...] = ()
    """Flags for what `march` does not cover."""


_AVX512 = frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "f16c", "fma"})
TARGETS: dict[str, tuple[Target, ...]] = {
    "x86_64": (
        Target("avx512vnni", "x86-64-v4", _AVX512 | {"avx512_vnni"}, ("-mavx512vnni",)),
        Target("avx512", "x86-64-v4", _AVX512),
        Target("avx2", "x86-64-v3", frozenset({"avx2", "f16c", "fma", "bmi2"})),
        Target("portable", "x86-64", frozenset()),
    ),
    "aarch64": (Target("neon", "armv8-a", frozenset()),),
}


def targets() -> tuple[Target, ...]:
    """What can be built for this machine's kind of processor, best first."""
    return TARGETS.get(platform.machine(), (Target("portable", "native", frozenset()),))


def runnable() -> tuple[Target, ...]:
    """The builds that this processor can run, best first."""
    have = processor_features()
    return tuple(target for target in targets() if target.needs <= have)


def distinct() -> tuple[Target, ...]:
    """Of those that this processor runs, all with code of their own.

    Where the best one has VNNI, AVX-512 without it has the best one's vectors and the others' products.
    """
    best, *others = runnable()
    return (best, *(target for target in others if target.needs != _AVX512))


def compiler() -> str | None:
    """The C++ compiler: $CXX, else the first of c++, g++, clang++ on the PATH."""
    wanted = os.environ.get("CXX")
    return wanted or next((c for c in ("c++", "g++", "clang++") if shutil.which(c)), None)


def sources() -> list[Path]:
    """All files that are compiled; what they include is found beside them."""
    return sorted(SOURCES.glob("*.cpp"))


def units(folder: Path) -> list[Path]:
    """What the compiler is given: the large sources, and in `folder` a file that includes all others.

    Reading headers is most of the work on those: once takes a third off a build.
    """
    large = [source for source in sources() if source.name.startswith(LARGE)]
    others = folder / "others.cpp"
    text = "".join(f'#include "{source}"\n' for source in sources() if source not in large)
    others.write_text(text, encoding="utf-8")
    return [*large, others]


def digest() -> str:
    """Of all sources and flags: a library made from others is out of date."""
    total = hashlib.sha256(" ".join((*FLAGS, *LARGE)).encode())
    for source in sorted([*SOURCES.glob("*.h"), *sources()]):
        total.update(source.name.encode() + source.read_bytes())
    total.update(contract.text().encode())
    return total.hexdigest()[:16]


def write_contract(folder: Path) -> Path:
    """`folder`, with the contract.h that the sources include."""
    (folder / "contract.h").write_text(contract.text(), encoding="utf-8")
    return folder


def library(target: Target) -> Path:
    return BUILD / f"libmonolane-{target.name}-{digest()}.so"


def build(target: Target, *, extra: tuple[str, ...] = (), output: Path | None = None) -> Path:
    """The compiled library of a target; compiles it if it is missing.

    Raises BackendUnavailable if there is no compiler or it fails.
    """
    result = output or library(target)
    if result.exists():
        return result
    program = compiler()
    if program is None:
        raise BackendUnavailable("there is no C++ compiler: install g++ or clang++, or use --backend numpy")
    result.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=result.parent) as folder:
        unfinished = Path(folder) / result.name
        machine = [f"-march={target.march}", *target.extensions]
        command = [program, *FLAGS, *machine, f"-I{write_contract(Path(folder))}", *extra]
        objects = {unit: Path(folder) / f"{unit.stem}.o" for unit in units(Path(folder))}
        commands = [[*command, "-c", str(unit), "-o", str(o)] for unit, o in objects.items()]
        with ThreadPoolExecutor(usable_cores()) as pool:
            list(pool.map(partial(_run, target), commands))
        _run(target, [*command, "-shared", *map(str, objects.values()), "-o", str(unfinished)])
        unfinished.replace(result)
    return result


def _run(target: Target, command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[-300:])
        raise BackendUnavailable(f"{command[0]} cannot compile the CPU kernel for {target.name}: {why}")


def main() -> int:
    wanted = {"best": lambda: runnable()[:1], "distinct": distinct, "all": targets}
    parser = argparse.ArgumentParser(description="Compiles the CPU kernel where it is out of date.")
    parser.add_argument(
        "which",
        choices=wanted,
        help="the best that this processor runs, all with code of their own, or all of its kind of machine",
    )
    which = parser.parse_args().which
    try:
        for target in wanted[which]():
            sys.stdout.write(f"{target.name}: {build(target)}\n")
    except BackendUnavailable as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

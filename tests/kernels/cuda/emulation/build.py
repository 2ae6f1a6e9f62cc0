"""A C++ compiler for sources that run CUDA on a CPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

_FLAGS = (
    "-std=c++17", "-march=native", "-w", "-fpermissive", "-shared", "-fPIC",
    "-Og",  # built in two thirds of what -O1 takes, which is most of a test, and as fast
    "-U_FORTIFY_SOURCE",  # it takes a jump from one stack to another for an attack
)  # fmt: skip


def build_library(source: Path, library: Path) -> Path:
    """Compiles `source` beside the files it includes. Raises FileNotFoundError if there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler: install g++, or name one in CXX")
    here = str(Path(__file__).parent)
    subprocess.run(
        [compiler, *_FLAGS, "-I", here, "-I", str(source.parent), str(source), "-o", str(library)],
        check=True,
        timeout=300,
    )
    return library


def load_part(folder: Path, name: str, source: str) -> ctypes.CDLL:
    """A part of the kernels with an entry of its own, built beside its headers. Raises as build_library."""
    path = folder / f"{name}.cpp"
    path.write_text(source, encoding="utf-8")
    return ctypes.CDLL(str(build_library(path, folder / f"{name}.so")))

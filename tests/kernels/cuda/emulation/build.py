"""A C++ compiler for sources that run CUDA on a CPU."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

_FLAGS = (
    "-std=c++17", "-march=native", "-w", "-fpermissive", "-fPIC",
    "-Og",  # built in two thirds of what -O1 takes, which is most of a test, and as fast
    "-U_FORTIFY_SOURCE",  # it takes a jump from one stack to another for an attack
)  # fmt: skip
_STANDARD = "setjmp.h ucontext.h algorithm cmath cstdio cstdlib cstring memory vector"
"""Headers that emulation.h includes, which take a sixth of a build."""


def build_library(source: Path, library: Path) -> Path:
    """Compiles `source` beside the files it includes. Raises FileNotFoundError if there is no compiler."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler: install g++, or name one in CXX")
    here = str(Path(__file__).parent)
    include = ["-include", f"{_precompiled(compiler).name}/standard.h", "-I", here, "-I", str(source.parent)]
    _run(compiler, "-shared", *include, str(source), "-o", str(library))
    return library


@cache
def _precompiled(compiler: str) -> TemporaryDirectory[str]:
    """A folder with standard.h, as the compiler has read it, until this process ends."""
    folder = TemporaryDirectory(prefix="monolane-headers-")
    header = Path(folder.name) / "standard.h"
    header.write_text("".join(f"#include <{name}>\n" for name in _STANDARD.split()), encoding="utf-8")
    _run(compiler, "-x", "c++-header", str(header), "-o", f"{header}.gch")
    return folder


def _run(compiler: str, *arguments: str) -> None:
    subprocess.run([compiler, *_FLAGS, *arguments], check=True, timeout=300)


def load_part(folder: Path, name: str, source: str) -> ctypes.CDLL:
    """A part of the kernels with an entry of its own, built beside its headers. Raises as build_library."""
    path = folder / f"{name}.cpp"
    path.write_text(source, encoding="utf-8")
    return ctypes.CDLL(str(build_library(path, folder / f"{name}.so")))

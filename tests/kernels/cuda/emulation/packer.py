"""pack_units.cu on the CPU: its threads one after the other, as none waits for another."""

from __future__ import annotations

import ctypes
from pathlib import Path

from engine.backends.cuda.compile import SOURCES
from engine.backends.cuda.contract import UnitJob
from tests.kernels.cuda.emulation.build import build_library
from tests.kernels.cuda.emulation.sources import convert, write_headers

_PREFACE = """#define THREADS_OF_A_BLOCK 1
#include "emulation.h"
#undef threadIdx
#undef blockIdx
struct Place3 { unsigned x, y; };
static Place3 threadIdx{0, 0}, blockIdx{0, 0}, gridDim{1, 1}, blockDim{1, 1};
"""
_ENTRY = """
extern "C" void pack(const UnitJob* job, int cores) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(cores); ++blockIdx.y) pack_units(*job);
}
extern "C" void unpack(const UnitJob* job, int cores) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(cores); ++blockIdx.y) unpack_units(*job);
}
"""


class EmulatedPacker:
    """Raises FileNotFoundError if there is no C++ compiler."""

    def __init__(self, folder: Path) -> None:
        write_headers(folder)
        (folder / "model.h").write_text('#define WEIGHTS_PTX "f16"\n', encoding="utf-8")
        source = folder / "pack_units.cpp"
        kernel = convert((SOURCES / "pack_units.cu").read_text(encoding="utf-8"))
        source.write_text(_PREFACE + kernel + _ENTRY, encoding="utf-8")
        self._library = ctypes.CDLL(str(build_library(source, folder / "pack_units.so")))

    def pack(self, job: UnitJob, cores: int) -> None:
        self._library.pack(ctypes.byref(job), cores)

    def unpack(self, job: UnitJob, cores: int) -> None:
        self._library.unpack(ctypes.byref(job), cores)

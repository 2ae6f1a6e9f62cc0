"""The packing kernels on the CPU: their threads one after the other, as none waits for another."""

from __future__ import annotations

import ctypes
from pathlib import Path

from engine.backends.cuda.compile import SOURCES
from engine.backends.cuda.contract import FoldJob, PackJob, UnitJob
from engine.backends.cuda.folded_router import FOLDED_TOGETHER
from tests.kernels.cuda.emulation.build import load_part
from tests.kernels.cuda.emulation.sources import convert, write_headers

_PREFACE = """#define THREADS_OF_A_BLOCK 1
#include "emulation.h"
#undef threadIdx
#undef blockIdx
struct Place3 { unsigned x, y; };
static Place3 threadIdx{0, 0}, blockIdx{0, 0}, gridDim{1, 1}, blockDim{1, 1};
"""
_FOLD = """
extern "C" void fold(const JOB* job, const FoldJob* fold, int blocks) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(blocks); ++blockIdx.y) KERNEL(*job, *fold);
}
"""
_ENTRY = """
extern "C" void pack(const UnitJob* job, int cores) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(cores); ++blockIdx.y) pack_units(*job);
}
extern "C" void unpack(const UnitJob* job, int cores) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(cores); ++blockIdx.y) unpack_units(*job);
}
"""


_ENTRY_OF_HALVES = """
extern "C" void pack(const PackJob* job, int cores) {
    for (blockIdx.y = 0; blockIdx.y < unsigned(cores); ++blockIdx.y) pack_matrix(*job);
}
"""


class EmulatedPacker:
    """Raises FileNotFoundError if there is no C++ compiler."""

    def __init__(self, folder: Path) -> None:
        write_headers(folder, '#define WEIGHTS_PTX "f16"\n')
        of_units = _FOLD.replace("JOB", "UnitJob").replace("KERNEL", "fold_router_units")
        self._library = _build(folder, "pack_units", _ENTRY + of_units)
        of_halves = _FOLD.replace("JOB", "PackJob").replace("KERNEL", "fold_router")
        self._halves = _build(folder, "pack", _ENTRY_OF_HALVES + of_halves)

    def pack(self, job: PackJob | UnitJob, cores: int) -> None:
        library = self._library if isinstance(job, UnitJob) else self._halves
        library.pack(ctypes.byref(job), cores)

    def unpack(self, job: UnitJob, cores: int) -> None:
        self._library.unpack(ctypes.byref(job), cores)

    def fold(self, job: PackJob | UnitJob, fold: FoldJob) -> None:
        library = self._library if isinstance(job, UnitJob) else self._halves
        library.fold(ctypes.byref(job), ctypes.byref(fold), -(-fold.experts // FOLDED_TOGETHER))


def _build(folder: Path, name: str, entry: str) -> ctypes.CDLL:
    kernel = convert((SOURCES / f"{name}.cu").read_text(encoding="utf-8"))
    return load_part(folder, name, _PREFACE + kernel + entry)

"""Kernels from source to machine code by NVRTC, kept on disk under a hash of all that goes in.

NVRTC needs no GPU, so a machine without one can compile and check every specialisation.
"""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.backends.cuda import contract, wgmma
from engine.errors import BackendUnavailable
from engine.progress import OnProgress, Progress, ignore_progress
from engine.settings import home

SOURCES = Path(__file__).resolve().parents[3] / "kernels" / "cuda"
ARCHITECTURE = "sm_90a"


@dataclass(frozen=True, slots=True)
class Compiled:
    """`image` is a cubin. `log` is what the compiler said; empty if it came from the cache."""

    image: bytes
    log: str
    seconds: float


def compile_kernel(
    name: str,
    header: str,
    *,
    progress: OnProgress = ignore_progress,
    verbose: bool = False,
    cache: bool = True,
) -> Compiled:
    """Compiles kernels/cuda/`name`, or the file of that path, with `header` as its model.h.

    Raises BackendUnavailable if there is no NVRTC here, or if the source does not compile.
    """
    files = {path.name: path.read_text(encoding="utf-8") for path in sorted(SOURCES.glob("*.cuh"))}
    files["contract.h"] = contract.text()
    files["model.h"] = header
    files["wgmma.h"] = wgmma.text()
    path = SOURCES / name  # an absolute path stays itself
    source = path.read_text(encoding="utf-8")
    options = [f"--gpu-architecture={ARCHITECTURE}", "--std=c++17", "--device-as-default-execution-space"]
    if verbose:
        options.append("--ptxas-options=-v")
    nvrtc = load_nvrtc()
    kept = home() / "kernels" / f"{_digest(nvrtc, source, files, options)}.cubin"
    if cache and kept.exists():
        return Compiled(kept.read_bytes(), "", 0.0)
    progress(Progress(0, 1, "kernel", f"compiling {path.name} for {ARCHITECTURE} (once for this model)"))
    started = time.perf_counter()
    image, log = _run_nvrtc(nvrtc, path.name, source, files, options)
    if cache:
        _write(kept, image)
    return Compiled(image, log, time.perf_counter() - started)


def load_nvrtc() -> Any:
    """The compiler's bindings. Raises BackendUnavailable if they or the library are missing."""
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError, OSError) as error:
        raise BackendUnavailable(
            f"NVRTC cannot be loaded ({error}): install cuda-bindings and nvidia-cuda-nvrtc 13"
        ) from error
    return nvrtc


def _digest(nvrtc: Any, source: str, files: dict[str, str], options: list[str]) -> str:
    digest = hashlib.sha256(repr((nvrtc.nvrtcVersion()[1:], options, source)).encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0{files[name]}".encode())
    return digest.hexdigest()[:32]


def _run_nvrtc(
    nvrtc: Any, name: str, source: str, files: dict[str, str], options: list[str]
) -> tuple[bytes, str]:
    names = [n.encode() for n in files]
    texts = [t.encode() for t in files.values()]
    error, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(names), texts, names)
    _check(nvrtc, error, "nvrtcCreateProgram")
    encoded = [o.encode() for o in options]
    (failed,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
    _, size = nvrtc.nvrtcGetProgramLogSize(program)
    log = bytearray(size)  # it is written in place: a bytes object may be one that everybody shares
    nvrtc.nvrtcGetProgramLog(program, log)
    text = log.rstrip(b"\0 \n").decode(errors="replace")
    if failed != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendUnavailable(f"{name} does not compile for {ARCHITECTURE}: {text[-4000:]}")
    error, size = nvrtc.nvrtcGetCUBINSize(program)
    _check(nvrtc, error, "nvrtcGetCUBINSize")
    image = bytearray(size)
    nvrtc.nvrtcGetCUBIN(program, image)
    nvrtc.nvrtcDestroyProgram(program)
    return bytes(image), text


def _check(nvrtc: Any, error: Any, call: str) -> None:
    if error != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise BackendUnavailable(f"{call} failed: {error}")


def _write(path: Path, data: bytes) -> None:
    """Whole or not at all: another process may be doing the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_suffix(f".{os.getpid()}.tmp")
    scratch.write_bytes(data)
    scratch.replace(path)

"""Where the peers' code comes from: a folder that is there, or a public repository at a commit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from engine.measuring.bandwidth import usable_cores
from tools.bench_peers.peer import PeerUnavailable

LLAMA_CPP = "https://github.com/ggml-org/llama.cpp@0c1e5709"
MEGAKERNELS = "https://github.com/HazyResearch/Megakernels@7309cec801537b61fea3b50d7dfe454a6cde578e"
SAYS = "SOURCE"
"""A file in a folder without a repository: its first line says where the code came from."""
_CLONE_S, _BUILD_S = 300.0, 1200.0


def code_of(given: str, work: Path) -> tuple[Path, str]:
    """The folder of a peer's code, and in words where it came from.

    given: a folder, or URL@COMMIT, which is cloned into `work`. Raises PeerUnavailable.
    """
    folder = Path(given).expanduser()
    if folder.is_dir():
        return folder.resolve(), _origin(folder)
    url, at, commit = given.rpartition("@")
    if not (at and url.startswith("https://")):
        raise PeerUnavailable(f"{given!r} is no folder here; name one, or https://HOST/REPOSITORY@COMMIT")
    into = work / url.rsplit("/", 1)[-1]
    if not into.is_dir():
        scratch = into.with_suffix(".part")
        shutil.rmtree(scratch, ignore_errors=True)
        _run(["git", "clone", "--quiet", url, str(scratch)], _CLONE_S)
        _run(["git", "-C", str(scratch), "checkout", "--quiet", commit], _CLONE_S)
        _run(["git", "-C", str(scratch), "submodule", "--quiet", "update", "--init", "--recursive"], _CLONE_S)
        scratch.rename(into)
    return into, f"{url}@{commit}"


def _origin(folder: Path) -> str:
    says = folder / SAYS
    if says.is_file():
        return says.read_text(encoding="utf-8").splitlines()[0].strip()
    if (folder / ".git").exists():
        url = _output(["git", "-C", str(folder), "remote", "get-url", "origin"])
        return f"{url}@{_output(['git', '-C', str(folder), 'rev-parse', 'HEAD'])}"
    return f"folder {folder.name}"


def built_llama_bench(code: Path, work: Path, *, gpu: bool = True) -> Path:
    """`llama-bench` out of a folder that holds it, or the sources. Raises PeerUnavailable."""
    name = "llama-bench"
    for there in (code / name, code / "bin" / name, code / "build" / "bin" / name):
        if os.access(there, os.X_OK) and there.is_file():
            return there
    build = work / "llama.cpp-build"
    flags = ["-DGGML_CUDA=ON", "-DCMAKE_CUDA_ARCHITECTURES=native"] if gpu else []
    _run(["cmake", "-S", str(code), "-B", str(build), "-DCMAKE_BUILD_TYPE=Release", *flags], _BUILD_S)
    _run(["cmake", "--build", str(build), "--target", name, "-j", str(usable_cores())], _BUILD_S)
    return build / "bin" / name


def built_megakernels(code: Path, work: Path) -> Path:
    """The folder of `mk_llama` for this Python, as found beside its sources, or built for Hopper as its
    Makefile does. Raises PeerUnavailable."""
    demo, suffix = code / "demos" / "low-latency-llama", sysconfig.get_config_var("EXT_SUFFIX")
    if (demo / f"mk_llama{suffix}").is_file():
        return demo
    into = work / "megakernels-build"
    into.mkdir(parents=True, exist_ok=True)
    try:
        import pybind11  # type: ignore[import-not-found]
    except ImportError as error:
        raise PeerUnavailable("Megakernels needs pybind11's headers: pip install pybind11") from error
    includes = (
        code / "ThunderKittens" / "include", code / "include", sysconfig.get_path("include"),
        pybind11.get_include(),
    )  # fmt: skip
    command = [
        "nvcc", str(demo / "llama.cu"), "-DNDEBUG", "-DKITTENS_HOPPER", "-O3", "-std=c++20", "-x", "cu",
        "--expt-extended-lambda", "--expt-relaxed-constexpr", "--use_fast_math", "-lineinfo",
        "-Xcompiler=-fPIE,-Wno-psabi,-fno-strict-aliasing", "-forward-unknown-to-host-compiler",
        "-gencode=arch=compute_90a,code=sm_90a", *(f"-I{path}" for path in includes),
        "-shared", "-fPIC", "-o", str(into / f"mk_llama{suffix}"),
    ]  # fmt: skip
    _run(command, _BUILD_S)
    return into


def library_path(*folders: Path) -> str:
    """LD_LIBRARY_PATH with these folders and those of the CUDA libraries that Python's packages brought."""
    found = [str(folder) for folder in folders]
    try:
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError:
        pass
    else:
        for name in ("cublas", "cublasLt", "cudart"):
            try:
                path = load_nvidia_dynamic_lib(name).abs_path
            except DynamicLibNotFoundError:
                continue
            found += [str(Path(path).parent)] if path else []
    kept = os.environ.get("LD_LIBRARY_PATH", "")
    return os.pathsep.join(dict.fromkeys([*found, *filter(None, kept.split(os.pathsep))]))


def _output(command: Sequence[str]) -> str:
    return _run(command, _CLONE_S).strip()


def _run(command: Sequence[str], limit_s: float) -> str:
    """What a command prints. Raises PeerUnavailable with its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except FileNotFoundError as error:
        raise PeerUnavailable(f"{command[0]} is not installed here") from error
    except subprocess.TimeoutExpired as error:
        raise PeerUnavailable(f"{command[0]} did not end within {limit_s:g} s") from error
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise PeerUnavailable(f"`{' '.join(command[:4])} …` failed: {last[-1][:300]}")
    return done.stdout

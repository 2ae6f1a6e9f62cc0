"""Where a measurement was taken: the facts that decide whether two runs may be compared.

A fact that this machine does not tell is absent, never guessed; the one thing that raises is a
MONOLANE_GIT_SHA that is no commit.
"""

from __future__ import annotations

import csv
import io
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from engine import settings
from engine.backends.base import Backend
from engine.measuring.bandwidth import usable_cores
from engine.processor import memory_bytes, processor_features, processor_name

_REPOSITORY = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 10.0

_FLAGS = {
    *("avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512_bf16", "avx512_fp16"),
    *("avx512_vnni", "avx_vnni", "amx_bf16", "amx_tile"),
    *("asimd", "asimdhp", "fphp", "bf16", "i8mm", "sve", "sve2"),
}
"""Instruction sets that a matrix product here may use; the rest of a CPU's flags only make noise."""

_PACKAGES = ("numpy", "tokenizers", "redis", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "torch")

_GPU_FIELDS: dict[str, tuple[str, type[str] | type[float]]] = {
    "name": ("name", str),
    "uuid": ("uuid", str),
    "driver_version": ("driver", str),
    "vbios_version": ("vbios", str),
    "memory.total": ("memory_mib", float),
    "clocks.sm": ("sm_mhz", float),
    "clocks.mem": ("memory_mhz", float),
    "clocks.max.sm": ("max_sm_mhz", float),
    "clocks.max.mem": ("max_memory_mhz", float),
    "power.draw": ("power_w", float),
    "power.limit": ("power_limit_w", float),
    "temperature.gpu": ("temperature_c", float),
    "ecc.mode.current": ("ecc", str),
    "mig.mode.current": ("mig", str),
}
_GPU_STATE = {"sm_mhz", "memory_mhz", "power_w", "temperature_c", "throttle"}
_THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The same bit mask in newer and older drivers; an unknown name fails the whole query, and each is slow."""


class Identified(Protocol):
    """What of a loaded model belongs to the environment."""

    @property
    def digest(self) -> str: ...


def capture(
    backend: Backend | None = None, model: Identified | None = None, *, commit: str = ""
) -> dict[str, Any]:
    """The facts as JSON values, by topic.

    A `commit` that is told, here or by MONOLANE_GIT_SHA, wins over a repository.
    `state` holds what changes by the minute (load, clocks, temperature); the rest belongs to the machine
    and the code, and two runs that differ there are not the same experiment.
    """
    gpus = gpu_facts()
    found: dict[str, Any] = {
        "git": named_commit(commit or settings.git_sha()) or git_facts(_REPOSITORY),
        "python": {"version": platform.python_version(), "implementation": platform.python_implementation()},
        "numpy": _numpy_facts(),
        "cpu": _cpu_facts(),
        "memory_bytes": memory_bytes(),
        "system": {"kernel": platform.release(), "os": platform.system(), "machine": platform.machine()},
        "packages": _package_versions(),
        "gpus": [{key: gpu[key] for key in gpu if key not in _GPU_STATE} for gpu in gpus],
        "state": _state(gpus, None),
    }
    known = {topic: value for topic, value in found.items() if value not in (None, {}, [])}
    return with_engine(known, backend, model)


def with_engine(
    machine: Mapping[str, Any], backend: Backend | None, model: Identified | None
) -> dict[str, Any]:
    """What `capture` found, and what is known of the engine beside it."""
    found = dict(machine)
    if backend is not None:
        found["state"] = {**found["state"], **backend.state()}
        found["backend"] = _backend_facts(backend)
    if model is not None:
        found["model"] = {"digest": model.digest}
    return found


def _state(gpus: Sequence[dict[str, Any]], backend: Backend | None) -> dict[str, Any]:
    state: dict[str, Any] = {"captured": datetime.now(UTC).isoformat(timespec="seconds")}
    if hasattr(os, "getloadavg"):
        state["load_average"] = [round(load, 2) for load in os.getloadavg()]
    if gpus:
        state["gpus"] = [{key: gpu[key] for key in gpu if key in _GPU_STATE} for gpu in gpus]
    return state if backend is None else {**state, **backend.state()}


def state(backend: Backend | None = None) -> dict[str, Any]:
    """What changes by the minute, now: time, load, and each GPU's clocks, power, temperature, throttling.

    A backend adds what it knows.
    """
    return _state(gpu_facts(), backend)


def git_facts(folder: Path) -> dict[str, Any]:
    """{"sha", "dirty"} of the checkout that holds `folder`; empty outside a checkout or without git.

    A repository that merely lies above the folder, and tracks nothing in it, says nothing about its code.
    """
    if _output(["git", "-C", str(folder), "ls-files", "--error-unmatch", "--", "."]) is None:
        return {}
    sha = _output(["git", "-C", str(folder), "rev-parse", "HEAD"])
    if sha is None:
        return {}
    changes = _output(["git", "-C", str(folder), "status", "--porcelain", "--untracked-files=no"])
    dirty = {} if changes is None else {"dirty": bool(changes.strip())}
    return {"sha": sha.strip(), **dirty}


def named_commit(sha: str) -> dict[str, Any]:
    """{"sha", "told"} of a commit that somebody named, rather than a repository; empty if nobody did."""
    return {"sha": sha, "told": True} if sha else {}


def gpu_facts() -> list[dict[str, Any]]:
    """One mapping a GPU as `nvidia-smi` sees it now; empty where there is no NVIDIA driver.

    Clocks in MHz, power in W, temperature in degrees C; `throttle` is the driver's bit mask (0x1: idle).
    """
    for throttle in (*_THROTTLE_FIELDS, None):
        fields = _GPU_FIELDS if throttle is None else {**_GPU_FIELDS, throttle: ("throttle", str)}
        if rows := _query_gpus(tuple(fields)):
            return [_facts_of(row, fields.values()) for row in rows]
    return []


def _facts_of(row: Sequence[str], fields: Iterable[tuple[str, type[str] | type[float]]]) -> dict[str, Any]:
    return {key: kind(text) for (key, kind), text in zip(fields, row, strict=True) if _is_fact(text, kind)}


def _query_gpus(fields: Sequence[str]) -> list[list[str]]:
    answer = _output(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    if answer is None:
        return []
    rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(answer)) if row]
    return [row for row in rows if len(row) == len(fields)]


def _is_fact(text: str, kind: type[str] | type[float]) -> bool:
    """Whether a cell says something: drivers write "[N/A]" and the like where a card has no such value."""
    if not text or text.startswith("["):
        return False
    if kind is float:
        try:
            float(text)
        except ValueError:
            return False
    return True


def _cpu_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {"cores": usable_cores(), "model": processor_name()}
    if used := sorted(_FLAGS & processor_features()):
        facts["flags"] = used
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip()
    if governor:
        facts["governor"] = governor
    return facts


def _numpy_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {"version": np.__version__}
    try:
        blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]  # type: ignore[call-overload,index,unused-ignore]
        facts["blas"] = f"{blas['name']} {blas['version']}"
    except (AttributeError, KeyError, TypeError):
        pass  # how NumPy tells of its libraries has changed before
    return facts


def _package_versions() -> dict[str, str]:
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _backend_facts(backend: Backend) -> dict[str, Any]:
    topology = backend.topology
    facts: dict[str, Any] = {
        "name": backend.name,
        "devices": [device.name for device in topology.devices],
        "parallelism": topology.parallelism,
    }
    if topology.link:
        facts["link"] = topology.link
    return {**facts, **backend.facts}


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _output(command: Sequence[str]) -> str | None:
    """What a program prints; None if it is missing, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace")

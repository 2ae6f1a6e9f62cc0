"""NCCL beside our exchange, on the same GPUs, right after it: what a library takes for the same sum.

In processes of its own, one a GPU, as NCCL is used (tools.bench_exchange.nccl_rank).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from engine.backends.cuda.driver import reachable_devices
from engine.settings import child_environment, visible_gpus
from tools.bench_exchange.measure import ExchangeTime

NCCL_LIMIT_S = 120.0
"""Of its processes, which take many seconds to find each other."""


def beside_nccl(
    found: Sequence[ExchangeTime], repeats: int, *, limit_s: float = NCCL_LIMIT_S
) -> list[ExchangeTime]:
    """The same with what NCCL takes on the same GPUs, measured now: for all numbers of GPUs in one run."""
    teams, sizes = sorted({f.devices for f in found}), sorted({f.floats for f in found})
    gpus = [device.ordinal for device in reachable_devices(max(teams))]
    times, why = run_nccl(gpus, teams, sizes, repeats, min(limit_s, NCCL_LIMIT_S))
    return [replace(f, nccl_us=times.get((f.devices, f.floats)), nccl=why) for f in found]


def run_nccl(
    gpus: Sequence[int], teams: Sequence[int], sizes: Sequence[int], repeats: int, limit_s: float
) -> tuple[dict[tuple[int, int], float], str]:
    """Microseconds of NCCL's all-reduce by (GPUs, size), and its version; nothing and why, if it cannot.

    A team is the first so many of `gpus`, which are the driver's ordinals in this process.
    """
    # Multicast stays off: on a host that is shared it can put the others' GPUs out of service.
    environment = child_environment(
        NCCL_NVLS_ENABLE="0", PYTHONPATH=os.pathsep.join(sys.path), CUDA_VISIBLE_DEVICES=visible_gpus(gpus)
    )
    with tempfile.TemporaryDirectory(prefix="nccl-") as place:  # to meet at: a port may be taken
        arguments = [f"{place}/meeting", ",".join(map(str, teams)), str(repeats), *map(str, sizes)]
        command = [sys.executable, "-m", "tools.bench_exchange.nccl_rank", *arguments]
        done = _run_within(command, environment, limit_s)
    if done is None:
        return {}, f"NCCL did not answer within {limit_s:.0f} s"
    code, output, errors = done
    if code:
        lines = errors.strip().splitlines() or ["it ended without a word"]
        return {}, f"NCCL did not run: {lines[-1]}"
    answer = json.loads(output.strip().splitlines()[-1])
    return {(team, size): us for team, size, us in answer["us"]}, str(answer["version"])


def _run_within(
    command: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> tuple[int, str, str] | None:
    """How a program ended and what it said; None if it took too long. Nothing that it started is left."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as program:  # fmt: skip
        try:
            output, errors = program.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with suppress(ProcessLookupError):  # all of them have ended
                os.killpg(program.pid, signal.SIGKILL)
    return program.returncode, output, errors

"""What a checker watches: a small model with each kind of request once, or a kernel with a planted error.

Usage: `python -m tests.gpu.checked_run NAME`, NAME of a model or of a kernel in planted.cu.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from unittest import mock

from engine.backends.base import Job
from engine.backends.cuda import compile as compiler
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.driver import reachable_devices
from engine.sampling import SamplingParams
from tests.gpu.models import CONFIGS, Model, RandomWeights

PROMPT = tuple(range(1, 40))
FILTERS = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=3)
PATIENCE_S = 100.0
"""A checker slows every wait down a thousand times."""


def run_model(name: str) -> None:
    config = CONFIGS[name]
    backend = CudaBackend(Model(config, RandomWeights(config, 3)), {"blocks_a_split": 1})
    backend.device_context.spin_budget_s = PATIENCE_S
    backend.logits(PROMPT[:7])
    for job in (Job(PROMPT, 4), Job(PROMPT, 4, FILTERS), Job(PROMPT, 4, profile=True)):
        launch = backend.launch(job)
        launch.wait()
        launch.close()
    backend.close()


def run_planted(name: str) -> None:
    (device,) = reachable_devices(1)
    device.activate()
    with mock.patch.object(compiler, "SOURCES", Path(__file__).parent):
        image = compiler.compile_kernel("planted.cu", "", cache=False).image
    kernel = device.module(image, {name: 0})[name]
    out = device.allocate(4096)
    device.launch(kernel, (1, 1), 64, 0, (ctypes.c_uint64(out),))
    device.synchronise()


if __name__ == "__main__":
    (run_model if sys.argv[1] in CONFIGS else run_planted)(sys.argv[1])
    print("ran to its end")

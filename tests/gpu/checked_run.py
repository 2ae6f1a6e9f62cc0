"""What a checker watches: a small model with each kind of request once, or a kernel with a planted error.

Usage: `python -m tests.gpu.checked_run NAME`, NAME of a model or of a kernel in planted.cu.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

from engine.backends.base import Job
from engine.backends.cuda import compile as compiler
from engine.backends.cuda.attention_cut import BLOCK_POSITIONS, blocks_a_warp
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.contract import WARPS
from engine.backends.cuda.driver import reachable_devices
from engine.backends.cuda.units import UNIT_BYTES
from engine.models.config import Experts, ModelConfig
from engine.models.weights import RandomWeights
from engine.sampling import SamplingParams
from tests.gpu.models import CONFIGS, LLAMA, Model

PROMPT = tuple(range(1, 40))
FILTERS = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=3)
PATIENCE_S = 100.0
"""A checker slows every wait down a thousand times."""
_NARROW = replace(
    LLAMA, hidden=64, layers=2, heads=2, kv_heads=1, head_dim=256, ffn=64, vocab=64, context=160,
    windows=(48, 0),
)  # fmt: skip
BEYOND_REGISTERS = {
    config.name: config
    for config in (
        replace(_NARROW, name="blocks-in-the-ring"),
        replace(
            _NARROW, name="blocks-in-the-ring-of-experts", family="qwen3_moe", qk_norm=True,
            experts=Experts(count=6, chosen=2),
        ),
    )
}  # fmt: skip
"""Heads of which an SM's warps hold the fewest positions at once, 128. The last layer has no window: it is
all that the prompt's last token goes through in decode."""


def run_model(name: str) -> None:
    backend = _opened(CONFIGS[name], {"blocks_a_split": 1})
    backend.logits(PROMPT[:7])
    _run(backend, Job(PROMPT, 4), Job(PROMPT, 4, FILTERS), Job(PROMPT, 4, profile=True))


def run_beyond_registers(name: str) -> None:
    """A prompt behind which a block of the cache comes through the ring in each pass. No head is split."""
    config = BEYOND_REGISTERS[name]
    backend = _opened(config, {"blocks_a_split": config.context, "tiles_from": config.context + 1})
    new, held = 4, WARPS * blocks_a_warp(config) * BLOCK_POSITIONS
    prompt = tuple(1 + i % (config.vocab - 1) for i in range(held + 2))
    assert blocks_in_ring(backend.layout, len(prompt) - 1) == 1
    _run(backend, Job(prompt, new))


def blocks_in_ring(layout: Layout, position: int) -> int:
    """Blocks that come through the ring in the pass of decode at `position`, for a layer without a window, if
    no head is split: those that the warps of its SM do not hold (kernels/cuda/ring_blocks.cuh)."""
    config = layout.config
    block = 2 * layout.kv_halves // (config.layers * config.kv_heads * (layout.capacity // BLOCK_POSITIONS))
    if layout.slot_units * UNIT_BYTES < block:
        return 0
    return max(0, -(-position // BLOCK_POSITIONS) - WARPS * blocks_a_warp(config))


def _opened(config: ModelConfig, options: dict[str, int]) -> CudaBackend:
    backend = CudaBackend(Model(config, RandomWeights(config, 3)), options)
    backend.device_context.spin_budget_s = PATIENCE_S
    return backend


def _run(backend: CudaBackend, *jobs: Job) -> None:
    for job in jobs:
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


def _runner(name: str) -> None:
    if name in CONFIGS:
        run_model(name)
    elif name in BEYOND_REGISTERS:
        run_beyond_registers(name)
    else:
        run_planted(name)


if __name__ == "__main__":
    _runner(sys.argv[1])
    print("ran to its end")

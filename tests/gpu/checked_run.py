"""A small model, each kind of request once, for a checker to watch.

Usage: `python -m tests.gpu.checked_run NAME`, and `planted` after it for a kernel with wrong addresses.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from engine.backends.base import Job, SamplingParams
from engine.backends.cuda.backend import CudaBackend
from tests.gpu.models import CONFIGS, Model, RandomWeights

PROMPT = tuple(range(1, 40))
FILTERS = SamplingParams(temperature=1.0, top_k=50, top_p=0.9, min_p=0.01, repetition_penalty=1.1, seed=3)
PATIENCE_S = 100.0
"""A checker slows every wait down a thousand times."""
NOWHERE = 1 << 44
"""Bytes: further off than any memory of a GPU lies."""


def main(name: str, planted: bool) -> None:
    config = CONFIGS[name]
    backend = CudaBackend(Model(config, RandomWeights(config, 3)), {})
    machine = backend.machine
    machine.spin_budget_s = PATIENCE_S
    if planted:
        machine.memory = replace(machine.memory, mail=machine.memory.mail + NOWHERE)
    backend.logits(PROMPT[:7])
    for sampling in (SamplingParams(), FILTERS):
        launch = backend.launch(Job(PROMPT, 4, sampling))
        launch.wait()
        launch.close()
    backend.close()
    print("ran to its end")


if __name__ == "__main__":
    main(sys.argv[1], "planted" in sys.argv[2:])

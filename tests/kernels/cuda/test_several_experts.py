"""Several requests of a mixture of experts in a launch: each leaves the tokens, keys and values that it leaves
alone, to the bit, whomever it and the others meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.models.config import Experts, ModelConfig
from engine.models.weights import RandomWeights, Weights
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.several import EmulatedRows, Ended, Request
from tests.kernels.cuda.test_emulation import EXPERTS, GPT_OSS
from tests.kernels.cuda.test_several import SAMPLINGS, prompt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("several-experts")


def check(weights: Weights, rows: int, cores: int, folder: Path) -> None:
    def emulated(requests: int) -> EmulatedRows:
        gpu = EmulatedGpu(folder, weights.config, weights, cores, requests=requests, filters=True)
        return EmulatedRows(gpu)

    alone, together = emulated(1), emulated(rows)
    asked = [Request(prompt(i, 1 + i % 3), 2 + i % 2, SAMPLINGS[i % 4]) for i in range(rows)]
    expected, caches = list[Ended | None](), []
    for one in asked:
        alone.seats[0].kv[:] = 0xFFFF
        expected += alone.launch([one])
        caches.append(alone.seats[0].kv.copy())

    assert together.launch(asked) == expected
    for seat, cache in zip(together.seats, caches, strict=True):
        np.testing.assert_array_equal(seat.kv, cache)


@pytest.mark.parametrize("config", [EXPERTS, GPT_OSS], ids=["scores of heads", "biases and sinks"])
def test_each_leaves_what_it_leaves_alone(config: ModelConfig, folder: Path) -> None:
    check(RandomWeights(config, 3), 2, 3, folder)

"""One launch of the monokernel on several GPUs, in emulation: all their threads in turn."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np

from engine.backends.cuda.contract import PEER_POINTERS, TOKEN_ID_BITS, Params, Status
from engine.kv_cache import KeysAndValues
from engine.models.config import ModelConfig
from engine.models.weights import Weights
from tests.kernels.cuda.emulation.launch import EmulatedGpu


class EmulatedGpus:
    """`ranks` GPUs of `cores` SMs each, which hold a model together."""

    def __init__(self, folder: Path, config: ModelConfig, weights: Weights, cores: int, ranks: int) -> None:
        self._gpus = [
            EmulatedGpu(folder, config, weights, cores, ranks=ranks, rank=rank) for rank in range(ranks)
        ]
        self.layout, self.chosen = self._gpus[0].layout, self._gpus[0].chosen
        self._passes = 0

    def generate(self, tokens: list[int], new: int, *, prefilled: int) -> list[int]:
        """Greedy."""
        ranks = len(self._gpus)
        launch = (Params * ranks)(*(gpu.params(tokens, new, prefilled, 0, 1) for gpu in self._gpus))
        statuses, rings = [Status() for _ in range(ranks)], np.zeros((ranks, new), np.uint64)
        for params, status, ring in zip(launch, statuses, rings, strict=True):
            params.serial += self._passes
            params.status, params.ring = ctypes.addressof(status), ring.ctypes.data
            for rank, peer in enumerate(launch):
                for name in PEER_POINTERS:
                    setattr(params.peers[rank], name, getattr(peer, name))
        ended = self._gpus[0].library.launch(launch)
        assert ended, "all threads wait for each other, or one gave up and said why on stderr"
        self._passes += statuses[0].passes
        return [int(word) & ((1 << TOKEN_ID_BITS) - 1) for word in rings[0, : statuses[0].generated]]

    def cache(self, positions: int) -> KeysAndValues:
        """What launches have left in its first `positions`, of all GPUs' heads."""
        copies = self.layout.sharding.kv_copies
        parts = [gpu.cache(positions) for gpu in self._gpus[::copies]]
        return KeysAndValues(*(np.concatenate(both, axis=1) for both in zip(*parts, strict=True)))

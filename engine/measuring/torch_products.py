"""The reference's products in PyTorch, so that a GPU verifies what is too much for the cores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
_WORD = 0xFFFFFFFF
_AT_ONCE = 1 << 26
"""Random numbers: some 2 GB of the device at most."""


class TorchProducts:
    """engine.reference.Products in true FP32 (no TF32) on a device of PyTorch. Holds one matrix at a time.

    It makes random weights too, which take longer on the cores than the products here.
    """

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self._torch = torch
        self._device = device
        torch.backends.cuda.matmul.allow_tf32 = False

    def random_numbers(self, count: int, key: int, scale: float, offset: float) -> NDArray[np.float16]:
        """The formula of engine.models.weights.RandomWeights, some at a time."""
        made = np.empty(count, np.float16)
        for start in range(0, count, _AT_ONCE):
            index = self._torch.arange(start, min(count, start + _AT_ONCE), device=self._device)
            unit = (_fmix32(index + key & _WORD) >> 8).to(self._torch.float32) * 2.0**-23 - 1.0
            made[start : start + len(index)] = (unit * scale + offset).half().cpu().numpy()
        return made

    def project(self, x: Array, matrix: Array) -> Array:
        return self._back(self._torch.matmul(self._there(x), self._there(matrix).transpose(1, 2)))

    def attend(
        self,
        q: Array,
        keys: Array,
        values: Array,
        unseen: NDArray[np.bool_] | None,
        cap: float,
        sinks: Array | None = None,
    ) -> Array:
        by_group, shown = self._there(keys).unsqueeze(2), self._there(values).unsqueeze(2)
        scores = self._torch.matmul(self._there(q), by_group.transpose(-1, -2))
        if cap:
            scores = self._torch.tanh(scores / cap) * cap
        if unseen is not None:
            scores.masked_fill_(self._there(unseen), float("-inf"))
        if sinks is not None:
            last = self._there(sinks)[..., None, None].expand(*scores.shape[:-1], 1)
            scores = self._torch.cat((scores, last), dim=-1)
        shares = scores.softmax(-1)[..., : shown.shape[-2]]
        return self._back(self._torch.matmul(shares, shown))

    def _there(self, array: NDArray[Any]) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _back(self, tensor: Any) -> Array:
        array: Array = tensor.cpu().numpy()
        return array


def _fmix32(h: Any) -> Any:
    """The finaliser of MurmurHash3 on words in 64 bits, which PyTorch shifts in as numbers without a sign."""
    h = (h ^ h >> 16) * 0x85EBCA6B & _WORD
    h = (h ^ h >> 13) * 0xC2B2AE35 & _WORD
    return h ^ h >> 16


def gpu_products() -> TorchProducts | None:
    """None where PyTorch is not installed or sees no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return TorchProducts(torch) if torch.cuda.is_available() else None

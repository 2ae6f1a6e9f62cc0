"""The reference's products in PyTorch, so that a GPU verifies what is too much for the cores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class TorchProducts:
    """engine.reference.Products in true FP32 (no TF32) on a device of PyTorch. Holds one matrix at a time."""

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self._torch = torch
        self._device = device
        torch.backends.cuda.matmul.allow_tf32 = False

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


def gpu_products() -> TorchProducts | None:
    """None where PyTorch is not installed or sees no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return TorchProducts(torch) if torch.cuda.is_available() else None

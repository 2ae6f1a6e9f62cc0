"""The reference's matrix products in PyTorch, so that a GPU verifies what is too much for the cores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


class TorchProducts:
    """An engine.reference.Project: true FP32 (no TF32) on a device of PyTorch. Holds one matrix at a time."""

    def __init__(self, torch: Any, device: str = "cuda") -> None:
        self._torch = torch
        self._device = device
        torch.backends.cuda.matmul.allow_tf32 = False

    def __call__(self, x: Array, matrix: Array) -> Array:
        """[L, n, in], [L, out, in] to [L, n, out]."""
        there = [self._torch.from_numpy(np.ascontiguousarray(a)).to(self._device) for a in (x, matrix)]
        product: Array = self._torch.matmul(there[0], there[1].transpose(1, 2)).cpu().numpy()
        return product


def gpu_products() -> TorchProducts | None:
    """None where PyTorch is not installed or sees no GPU."""
    try:
        import torch
    except ImportError:
        return None
    return TorchProducts(torch) if torch.cuda.is_available() else None

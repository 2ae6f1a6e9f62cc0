"""PyTorch does the reference's products as NumPy does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.measuring import torch_products
from engine.measuring.torch_products import TorchProducts
from engine.models.weights import random_numbers
from engine.reference import NumpyProducts


@pytest.mark.parametrize("cap", [0.0, 2.0])
@pytest.mark.parametrize(("masked", "sunk"), [(False, False), (True, False), (True, True)])
def test_attention_is_that_of_numpy(cap: float, masked: bool, sunk: bool) -> None:
    rng = np.random.default_rng(7)
    q = rng.normal(size=(2, 3, 4, 5, 8)).astype(np.float32)
    keys, values = rng.normal(size=(2, 2, 3, 9, 8)).astype(np.float32)
    unseen = np.triu(np.ones((5, 9), bool), 5) if masked else None
    sinks = rng.normal(size=(2, 3, 4)).astype(np.float32) if sunk else None
    expected = NumpyProducts().attend(q, keys, values, unseen, cap, sinks)
    found = TorchProducts(torch, "cpu").attend(q, keys, values, unseen, cap, sinks)
    assert np.abs(found - expected).max() < 1e-5


def test_a_product_is_that_of_numpy() -> None:
    rng = np.random.default_rng(8)
    x, matrix = rng.normal(size=(2, 3, 16)).astype(np.float32), rng.normal(size=(2, 5, 16)).astype(np.float32)
    expected = NumpyProducts().project(x, matrix)
    assert np.abs(TorchProducts(torch, "cpu").project(x, matrix) - expected).max() < 1e-5


@pytest.mark.parametrize(("key", "scale", "offset"), [(0xFFFFFFF0, 0.37, 0.0), (12345, 0.1, 1.0)])
def test_random_numbers_are_those_of_numpy_to_the_bit(
    key: int, scale: float, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_products, "_AT_ONCE", 300)
    scale = float(np.float32(scale))

    found = TorchProducts(torch, "cpu").random_numbers(1000, key, scale, offset)

    np.testing.assert_array_equal(found, random_numbers(1000, key, scale, offset))

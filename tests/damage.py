"""Kinds of damage for tests of the verification, on every backend.

`PACKED` is done to weights on their way to a backend, as a wrong packer would; `ROWS` to the logits that it
gives out, as a wrong kernel would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import OnStep, ShowsCache, ignore_step
from engine.kv_cache import KeysAndValues
from engine.models.config import ModelConfig
from engine.models.weights import DType, Weights, cast_tensor

Array = NDArray[np.float32]
Change = Callable[[Array], None]
"""Damages a tensor in place."""


@dataclass(frozen=True)
class Damaged:
    """A model whose tensors named `names` are changed on their way to a backend."""

    config: ModelConfig
    source: Weights
    names: tuple[str, ...]
    change: Change

    @property
    def weights(self) -> Weights:
        return self

    @property
    def native(self) -> DType:
        return self.source.native

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        if not any(name.endswith(end) for end in self.names):
            return self.source.get(name, dtype)
        tensor = self.source.get(name).copy()
        self.change(tensor)
        return cast_tensor(tensor, dtype)


def zero(tensor: Array) -> None:
    tensor[:] = 0.0


def scale(factor: float) -> Change:
    def change(tensor: Array) -> None:
        tensor *= np.float32(factor)

    return change


def noise(share: float) -> Change:
    def change(tensor: Array) -> None:
        tensor *= 1.0 + np.float32(share) * np.random.default_rng(1).standard_normal(tensor.shape, np.float32)

    return change


def swap_rows(tensor: Array) -> None:
    rows = tensor.reshape(-1, tensor.shape[-1])
    rows[[0, 1]] = rows[[1, 0]]


def copy_rows(tensor: Array) -> None:
    rows = tensor.reshape(-1, tensor.shape[-1])
    rows[8:16] = rows[:8]


def roll(tensor: Array) -> None:
    tensor[:] = np.roll(tensor.reshape(-1, tensor.shape[-1]), 1, axis=0).reshape(tensor.shape)


def transpose_halves(tensor: Array) -> None:
    half = tensor.shape[-1] // 2
    tensor[:] = np.concatenate([tensor[..., half:], tensor[..., :half]], axis=-1)


def one_value(value: float) -> Change:
    def change(tensor: Array) -> None:
        tensor.reshape(-1)[3] = value

    return change


def flip_sign(tensor: Array) -> None:
    tensor *= -1.0


MATRICES = ("wq", "wk", "wv", "wo", "w_gate", "w_up", "w_down")
PACKED: dict[str, tuple[tuple[str, ...], Change]] = {
    **{f"zeroed {name} of layer 0": ((f"layers.0.{name}",), zero) for name in MATRICES},
    **{f"zeroed {name} of layer 1": ((f"layers.1.{name}",), zero) for name in MATRICES},
    **{f"{name} of layer 1 x 1.5": ((f"layers.1.{name}",), scale(1.5)) for name in MATRICES},
    **{f"shifted rows of {name}": ((f"layers.0.{name}",), roll) for name in MATRICES},
    "w_down of layer 0 x 1.1": (("layers.0.w_down",), scale(1.1)),
    "attention output of every layer x 1.05": ((".wo",), scale(1.05)),
    "gate and up exchanged in sign": ((".w_gate", ".w_up"), flip_sign),
    "halves of each row of w_down exchanged": ((".w_down",), transpose_halves),
    "rows of wq copied over others": (("layers.0.wq",), copy_rows),
    "norms before attention x 0.9": ((".attn_norm",), scale(0.9)),
    "norms before the MLP of ones": ((".ffn_norm",), lambda t: t.fill(1.0)),
    "last norm x 1.02": (("norm",), scale(1.02)),
    "two rows of the embedding exchanged": (("embed",), lambda t: t.__setitem__([7, 8], t[[8, 7]])),
    "two rows of the head exchanged": (("head",), swap_rows),
    "head rolled by one row": (("head",), roll),
    "head x 2": (("head",), scale(2.0)),
    "1 % noise on every matrix": ((*MATRICES, "head"), noise(0.01)),
    "5 % noise on every matrix": ((*MATRICES, "head"), noise(0.05)),
    "a NaN in a matrix": (("layers.0.wv",), one_value(float("nan"))),
    "an infinity in the head": (("head",), one_value(float("inf"))),
}


class Altered:
    """A backend whose rows of logits are changed on their way out."""

    def __init__(self, backend: ShowsCache, change: Callable[[Array], Array]) -> None:
        self.name = backend.name
        self.facts = backend.facts
        self.storage = backend.storage
        self.tokens_and_cache = backend.tokens_and_cache
        self._backend = backend
        self._change = change

    def logits(self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step) -> Array:
        return self._change(self._backend.logits(tokens, scored_from, on_step).copy())

    def logits_and_cache(self, tokens: Sequence[int], scored_from: int = 0) -> tuple[Array, KeysAndValues]:
        logits, kept = self._backend.logits_and_cache(tokens, scored_from)
        return self._change(logits.copy()), kept


def with_value(value: float) -> Callable[[Array], Array]:
    def change(rows: Array) -> Array:
        rows[-1, 3] = value
        return rows

    return change


ROWS: dict[str, Callable[[Array], Array]] = {
    "doubled": lambda rows: rows * np.float32(2.0),
    "half": lambda rows: rows * np.float32(0.5),
    "x 1.02": lambda rows: rows * np.float32(1.02),
    "rolled by one token": lambda rows: np.roll(rows, 1, axis=1),
    "one position late": lambda rows: np.roll(rows, 1, axis=0),
    "two neighbours exchanged": lambda rows: rows[:, [1, 0, *range(2, rows.shape[1])]],
    "last slice of the vocabulary missing": lambda rows: (
        rows * (np.arange(rows.shape[1]) < rows.shape[1] - 16)
    ),
    "constant": np.zeros_like,
    "NaN": with_value(float("nan")),
    "infinite": with_value(float("inf")),
    "far away in one place": with_value(100.0),
}

"""How a mixture of experts computes: the rule that routes a token, and the experts in NumPy and FP32.

The rule, which every backend follows: the router gives each expert a score (its row times the normalised
vector, plus its bias). A token meets the `chosen` experts with the largest scores; of equal scores the lower
number goes first. Slot 0 is the best of them, and the experts' outputs, each times its weight, are added in
the order of slots: the sum does not depend on which thread or device computed what.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.activations import gate_halves
from engine.models.config import Experts, ModelConfig
from engine.models.weights import Weights

Array = NDArray[np.float32]
Project = Callable[[Array, Array], Array]
"""engine.reference.Products.project: vectors [1, n, in] times a matrix [1, out, in]."""


def choose_experts(scores: Array, experts: Experts) -> tuple[NDArray[np.intp], Array]:
    """The experts that each token meets, best first, and their weights: two [n, chosen].

    `scores` is [n, count].
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, : experts.chosen]
    best = np.take_along_axis(scores, order, axis=1)
    largest = best[:, :1]
    weights: Array = np.exp(best - largest)
    counted = weights if experts.renormalise else np.exp(scores - largest)
    weights /= counted.sum(axis=1, keepdims=True)
    return order, weights


@dataclass(frozen=True, slots=True)
class Expert:
    """One expert's matrices, widened to FP32."""

    gate_up: Array
    """[1, 2*F, D]: rows of w_gate, then w_up."""
    down: Array
    """[1, D, F]"""
    gate_up_bias: Array | float
    """[2*F], or 0."""
    down_bias: Array | float
    """[D], or 0."""


class ExpertLayer:
    """The router and the experts of one layer.

    Experts stay as their source keeps them, packed or in a mapped file, and are widened each time that a
    token meets them: in FP32 all of them together would be eight times as large. With `ahead` so many are
    widened side by side, on threads of their own, while the one before them is in use.
    """

    def __init__(self, weights: Weights, layer: int, *, ahead: int = 0) -> None:
        experts = weights.config.experts
        if experts is None:
            raise ValueError(f"{weights.config.name} has no experts")
        self._config: ModelConfig = weights.config
        self._experts = experts
        self._weights = weights
        self._ahead = ahead
        self._prefix = f"layers.{layer}."
        self._router: Array = weights.get(f"{self._prefix}router")[np.newaxis]
        self._bias = weights.get(f"{self._prefix}router_bias") if experts.biased else np.float32(0.0)

    def route(self, x: Array, project: Project) -> tuple[NDArray[np.intp], Array]:
        """`choose_experts` for normalised vectors x [1, n, D]."""
        scores = project(x, self._router)[0]
        scores += self._bias
        return choose_experts(scores, self._experts)

    def mix(self, x: Array, chosen: NDArray[np.intp], weights: Array, project: Project) -> Array:
        """The weighted sum of each token's experts, [1, n, D]; an expert is read once for all its tokens."""
        slots = np.empty((self._experts.chosen, x.shape[1], x.shape[2]), np.float32)
        for number, expert in self._loaded(np.unique(chosen).tolist()):
            tokens, slot = np.nonzero(chosen == number)
            slots[slot, tokens] = self._run(expert, x[:, tokens], project)
        mixed = np.zeros_like(x)
        for slot_out, weight in zip(slots, weights.T, strict=True):
            mixed += slot_out * weight[:, np.newaxis]
        return mixed

    def _run(self, expert: Expert, x: Array, project: Project) -> Array:
        both = project(x, expert.gate_up)
        both += expert.gate_up_bias
        gated = gate_halves(both, self._config.activation, self._config.swiglu_limit)
        out: Array = project(gated, expert.down)[0]
        out += expert.down_bias
        return out

    def _loaded(self, numbers: Sequence[int]) -> Iterator[tuple[int, Expert]]:
        """Each with its number."""
        if not self._ahead:
            yield from ((number, self._load(number)) for number in numbers)
            return
        with ThreadPoolExecutor(self._ahead) as pool:
            begun: deque[tuple[int, Future[Expert]]] = deque()
            for number in numbers:
                begun.append((number, pool.submit(self._load, number)))
                if len(begun) > self._ahead:
                    done, expert = begun.popleft()
                    yield done, expert.result()
            for done, expert in begun:
                yield done, expert.result()

    def _load(self, number: int) -> Expert:
        def get(name: str) -> Array:
            tensor: Array = self._weights.get(f"{self._prefix}experts.{number}.{name}")
            return tensor

        biased = self._experts.biased
        return Expert(
            gate_up=np.concatenate([get("w_gate"), get("w_up")], axis=1),
            down=np.ascontiguousarray(get("w_down")),
            gate_up_bias=np.concatenate([get("b_gate")[0], get("b_up")[0]]) if biased else 0.0,
            down_bias=get("b_down") if biased else 0.0,
        )

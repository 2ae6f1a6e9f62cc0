"""What a measurement calls the weights that it read."""

from __future__ import annotations

import math
from collections import Counter

from engine.backends.base import Backend, Loaded
from engine.models.config import matrix_shapes
from engine.models.storage import Storage


def weight_format(backend: Backend, model: Loaded) -> str:
    """The packed format in which the backend keeps most of the weights, or else the checkpoint's width."""
    kept = Counter[Storage | None]()
    for name, shape in matrix_shapes(model.config).items():
        kept[backend.storage(name)] += math.prod(shape)
    [(most, _)] = kept.most_common(1)
    return most.name.lower() if most is not None and most.is_packed else model.weights.native

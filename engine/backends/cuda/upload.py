"""What kernels read of a launch's requests beside their Params, in one piece of memory and so in one copy."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.contract import Params
from engine.backends.cuda.params import biases_of
from engine.sampling import SamplingParams

_ALIGNED = 16


class Upload:
    """The ids, stop ids and biases of all requests of a launch.

    Put together from bytes: for so little NumPy takes several times as long.
    """

    def __init__(self) -> None:
        self._data = bytearray()
        self._places: list[tuple[int, int, int]] = []

    def add(
        self, params: Params, ids: Sequence[int], stop_ids: Collection[int], sampling: SamplingParams
    ) -> None:
        """Only those ids that the kernel looks at: with penalties all, else what is to be processed."""
        begin = 0 if params.sampling.adjusts else params.first
        at = self._append(_int32(ids[begin:])) - 4 * begin
        stops = self._append(_int32(sorted(stop_ids) or (-1,)))
        self._places.append((at, stops, self._append(biases_of(sampling))))

    def joined(self) -> NDArray[np.uint8]:
        return np.frombuffer(self._data, np.uint8)

    def point(self, params: Params, request: int, base: int) -> None:
        """Tells a request's kernel where its own are, of what lies at `base`."""
        params.ids, params.stop_ids, params.biases = (base + at for at in self._places[request])

    def _append(self, values: bytes) -> int:
        at = len(self._data)
        self._data += values + bytes(-len(values) % _ALIGNED)
        return at


def _int32(values: Sequence[int]) -> bytes:
    return array("i", values).tobytes()

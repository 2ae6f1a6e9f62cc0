"""Turning the rows of query and key matrices from one rotary layout to the other.

The two layouts name the same rotations: element j of a head in HALF is element 2j in INTERLEAVED for
j < head_dim/2, and 2(j - head_dim/2) + 1 above. A model is unchanged when the rows of wq and wk and the
layout in its configuration move together.
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from engine.models.rope import RopeLayout


def turn_rows(matrix: NDArray[Any], head_dim: int, source: RopeLayout, target: RopeLayout) -> NDArray[Any]:
    """`matrix` [..., rows, columns], rows a multiple of `head_dim`, from `source` to `target` layout."""
    if source is target:
        return matrix
    *front, rows, columns = matrix.shape
    pairs = (2, head_dim // 2) if source is RopeLayout.HALF else (head_dim // 2, 2)
    heads = matrix.reshape(*front, rows // head_dim, *pairs, columns)
    return heads.swapaxes(-3, -2).reshape(matrix.shape)

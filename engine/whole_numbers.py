"""What counts as a whole number where a value from outside must be one."""

from __future__ import annotations

from typing import TypeGuard


def is_whole(value: object, least: int, most: int | None = None) -> TypeGuard[int]:
    """Whether it is one from `least` on, up to `most` if that is given. True and False are none."""
    if isinstance(value, bool) or not isinstance(value, int):
        return False
    return value >= least and (most is None or value <= most)

"""Which sets of parameters every change has to pass, and which only `make test-nightly` tries."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def at_night(*values: Any) -> Any:
    """One set of parameters that is of the same kind as one which is tried each time, or takes long."""
    return pytest.param(*values, marks=pytest.mark.nightly)


def each_time_but(nightly: Collection[Any], values: Iterable[Any]) -> list[Any]:
    """`values` of one parameter, of which those in `nightly` wait for the night.

    Raises ValueError if one of them is no value.
    """
    listed = list(values)
    if unknown := [value for value in nightly if value not in listed]:
        raise ValueError(f"{unknown} are none of {listed}")
    return [at_night(value) if value in nightly else value for value in listed]

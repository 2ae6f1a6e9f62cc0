"""The matrix of a sweep: what may stand in it, and the benchmark points that it unfolds into.

{"model": ["smollm2-135m"], "backend": ["cpu"], "devices": [1], "sync": ["mailbox", "barrier"],
 "streams": [1, 4], "context": [64, 256], "tokens": [64], "sampling": [{}]}: lists, each value in its own
range. Their product, in the order given (the last axis turns fastest), is the list of points. `devices`,
`sync`, `streams` and `sampling` may be left out (one; what the worker does by itself; one; greedy).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from django.core.exceptions import ValidationError

from engine.backends import BACKENDS, WITH_SYNC
from engine.backends.base import SYNCS
from engine.errors import RequestError
from engine.sampling import OPTIONS, SamplingParams
from engine.settings import MOST_ROWS

AXES = ("model", "backend", "devices", "sync", "streams", "context", "tokens", "sampling")
"""Of a matrix, and so the fields of a PointSpec and the columns of a Point that say what is measured."""
DEFAULTS: dict[str, list[Any]] = {"devices": [1], "sync": [""], "streams": [1], "sampling": [{}]}
CHOICES = {"backend": BACKENDS, "sync": SYNCS}
MAX_POINTS = 500
REPEATS = (5, 100)
"""Fewer than 5 repeats say nothing about the spread; more than 100 belong in a longer generation."""
RANGES = {"devices": (1, 64), "streams": (1, MOST_ROWS), "context": (1, 1 << 20), "tokens": (2, 1 << 16)}
"""A decode speed needs two tokens: it counts the gaps between them."""
_MODEL = re.compile(r"[A-Za-z0-9][\w.:+-]{0,199}", re.ASCII)
GREEDY = "greedy"
SAMPLING = {option.name: option for option in OPTIONS}


@dataclass(frozen=True, slots=True)
class PointSpec:
    """One point before it has a row."""

    model: str
    backend: str
    devices: int
    sync: str
    """One of engine.backends.base.SYNCS; empty for what the worker does by itself."""
    streams: int
    """Requests side by side."""
    context: int
    tokens: int
    sampling: SamplingParams

    @property
    def columns(self) -> dict[str, Any]:
        """By axis, as a row keeps them."""
        values = {axis: getattr(self, axis) for axis in AXES}
        return values | {"sampling": sampling_dict(self.sampling)}

    @property
    def label(self) -> str:
        return sampling_label(self.sampling)

    def __str__(self) -> str:
        return f"{place(self)}, {self.label}"


class Placed(Protocol):
    """A point, or its row."""

    @property
    def model(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def devices(self) -> int: ...
    @property
    def sync(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def tokens(self) -> int: ...


def place(point: Placed) -> str:
    """A point in words, its sampling left out."""
    how = f", {point.sync}" if point.sync else ""
    many = f", {point.streams} streams" if point.streams > 1 else ""
    where = f"{point.model} on {point.backend} x{point.devices}{how}{many}"
    return f"{where}, context {point.context}, {point.tokens} tokens"


def expand(matrix: Mapping[str, Any]) -> list[PointSpec]:
    """Every point of the matrix, in order. Raises ValidationError, one message a problem."""
    validate_matrix(matrix)
    axes = [matrix.get(axis, DEFAULTS.get(axis)) for axis in AXES]
    points = (dict(zip(AXES, values, strict=True)) for values in itertools.product(*axes))
    return [PointSpec(**{**point, "sampling": SamplingParams(**point["sampling"])}) for point in points]


def validate_matrix(matrix: object) -> None:
    """Raises ValidationError with every problem of `matrix`, each naming the axis and the value."""
    if not isinstance(matrix, Mapping):
        raise ValidationError(
            f"The matrix is a {type(matrix).__name__}; it must be an object of lists: {', '.join(AXES)}."
        )
    problems = [
        f"{key!r} is not an axis; allowed are {', '.join(AXES)}." for key in matrix if key not in AXES
    ]
    for axis in AXES:
        if axis in matrix or axis not in DEFAULTS:
            problems.extend(_axis_problems(axis, matrix.get(axis)))
    if not problems:
        problems.extend(_lacking(matrix))
    if not problems:
        count = _count(matrix)
        if count > MAX_POINTS:
            problems.append(
                f"The matrix has {count} points; a sweep takes at most {MAX_POINTS}. Split it into several."
            )
    if problems:
        raise ValidationError(problems)


def validate_repeats(repeats: int) -> None:
    low, high = REPEATS
    if not low <= repeats <= high:
        raise ValidationError(f"repeats is {repeats}; allowed are {low} to {high}.")


def sampling_label(sampling: SamplingParams) -> str:
    """How a person tells two samplings apart: "greedy", "t=0.8 top_k=40 top_p=0.95".

    The seed is left out: it changes which tokens come, not how fast.
    """
    greedy = sampling.temperature == 0
    parts = [
        f"{option.short}={value:g}"
        for option in OPTIONS
        if (value := getattr(sampling, option.name)) != option.default
        and option.short
        and not (greedy and option.filters)
    ]
    if sampling.logit_bias:
        parts.append(f"bias={len(sampling.logit_bias)}")
    return " ".join([GREEDY, *parts] if greedy else parts)


def sampling_dict(sampling: SamplingParams) -> dict[str, Any]:
    """Only what differs from greedy, as the matrix writes it."""
    return {k: v for k, v in asdict(sampling).items() if v != getattr(SamplingParams(), k)}


def _count(matrix: Mapping[str, Any]) -> int:
    count = 1
    for axis in AXES:
        count *= len(matrix.get(axis, DEFAULTS.get(axis)))
    return count


def _axis_problems(axis: str, values: object) -> list[str]:
    if values is None:
        return [f"The axis {axis!r} is missing; give at least one value."]
    if not isinstance(values, list) or not values:
        return [f"{axis} is {values!r}; it must be a list with at least one value."]
    if len(values) > MAX_POINTS:
        return [f"{axis} has {len(values)} values; a sweep takes at most {MAX_POINTS} points."]
    problems = [problem for value in values if (problem := _value_problem(axis, value))]
    if not problems:
        keys = [SamplingParams(**v) if axis == "sampling" else v for v in values]
        twice = next((v for i, v in enumerate(values) if keys[i] in keys[:i]), None)
        if twice is not None:
            problems.append(f"{axis} holds {twice!r} twice; each value is measured once.")
    return problems


def _value_problem(axis: str, value: object) -> str | None:
    if axis == "model":
        return _model_problem(value)
    if axis in CHOICES:
        if value not in CHOICES[axis]:
            return f"{axis} is {value!r}; allowed are {', '.join(CHOICES[axis])}."
        return None
    if axis == "sampling":
        return _sampling_problem(value)
    low, high = RANGES[axis]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        return f"{axis} is {value!r}; allowed are whole numbers from {low} to {high}."
    return None


def _lacking(matrix: Mapping[str, Any]) -> list[str]:
    """What is asked of a backend that it has not."""
    problems = []
    if "sync" in matrix:
        problems = [
            f"sync is chosen, but the backend {backend} has no choice of it ({' and '.join(WITH_SYNC)} have);"
            f" leave out sync, or {backend}."
            for backend in matrix["backend"]
            if backend not in WITH_SYNC
        ]
    several = max(matrix.get("streams", [1])) > 1 and max(matrix.get("devices", [1])) > 1
    if several:
        problems += [
            f"streams are {matrix['streams']}, and devices {matrix['devices']}; on the backend {backend}"
            " several streams run on one device: ask for them in a sweep of their own, or leave out"
            f" {backend}."
            for backend in matrix["backend"]
            if backend != "cuda"
        ]
    return problems


def _model_problem(value: object) -> str | None:
    # A path would let whoever defines sweeps name any file of the worker's machine.
    if isinstance(value, str) and _MODEL.fullmatch(value):
        return None
    return (
        f"model is {value!r}; give a model's name (letters, digits and . _ : + -), as `python -m engine "
        "models` lists them, or random:PRESET."
    )


def _sampling_problem(value: object) -> str | None:
    if not isinstance(value, dict):
        return f"sampling is {value!r}; each entry is an object, {{}} for greedy."
    unknown = sorted(str(k) for k in value if k not in SAMPLING)
    if unknown:
        return f"sampling has {unknown[0]!r}; allowed are {', '.join(sorted(SAMPLING))}."
    if wrong := next(
        ((k, v) for k, v in value.items() if isinstance(v, bool) or not isinstance(v, int | float)), None
    ):
        return f"sampling has {wrong[0]} = {wrong[1]!r}; it must be a number."
    if wrong := next(
        ((k, v) for k, v in value.items() if SAMPLING[k].whole and not isinstance(v, int)), None
    ):
        return f"sampling has {wrong[0]} = {wrong[1]!r}; it must be a whole number."
    try:
        SamplingParams(**value)
    except RequestError as error:
        return f"sampling: {error}."
    return None

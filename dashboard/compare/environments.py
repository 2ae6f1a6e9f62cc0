"""What differs between the surroundings of runs, beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dashboard.measurements.configurations import configuration_of
from dashboard.measurements.facts import flatten
from dashboard.runs.environment import throttle_text
from dashboard.templatetags.figures import commit
from engine.measuring.measurement import Measurement

MISSING = "not recorded"
_CODE = ("git.", "backend.kernel")
_RESULTS = ("peer.", "state.")
_SETTINGS = ("backend.parallelism", "backend.sync", "backend.cache")
"""Told by `_settings`, too: what was asked for is no matter of surroundings."""
"""Not surroundings: what a peer reached in the same run, and what changes by the minute (`_conditions`)."""
_CLOCK_TOLERANCE = 0.02


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that is not the same in all runs, and what each run says of it."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Differences:
    """`environment` makes a comparison doubtful, `settings` makes it one of different things; `code` is
    what a comparison is usually about."""

    environment: tuple[Difference, ...]
    settings: tuple[Difference, ...]
    code: tuple[Difference, ...]


def differences(results: Sequence[Measurement]) -> Differences:
    facts = [dict(flatten(result.environment)) for result in results]
    elsewhere = (*_CODE, *_RESULTS, *_SETTINGS)
    surroundings = [
        {**{k: v for k, v in one.items() if not k.startswith(elsewhere)}, **_devices(result)}
        for one, result in zip(facts, results, strict=True)
    ]
    code = [{k: v for k, v in one.items() if k.startswith(_CODE)} for one in facts]
    for one, result in zip(code, results, strict=True):
        one["git.sha"] = commit(result.git_sha)
    return Differences(
        (*_differences(surroundings), *_conditions(results)),
        tuple(_differences([_settings(result) for result in results])),
        tuple(_differences(code)),
    )


def _differences(facts: Sequence[Mapping[str, str]]) -> Iterator[Difference]:
    for name in dict.fromkeys(key for one in facts for key in one):
        values = tuple(one.get(name, MISSING) for one in facts)
        if len(set(values)) > 1:
            yield Difference(name, values)


def _settings(result: Measurement) -> dict[str, str]:
    asked = {name: str(value) for name, value in configuration_of(result).items() if name != "hardware"}
    sampling = ", ".join(f"{k} {v}" for k, v in flatten(_plain(result.settings.sampling)))
    return {**asked, "lanes": str(result.settings.lanes), "sampling": sampling}


def _plain(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def _devices(result: Measurement) -> dict[str, str]:
    return {"devices": ", ".join(device.name for device in result.devices)}


def _conditions(results: Sequence[Measurement]) -> Iterator[Difference]:
    """Throttling and clocks after the timed runs: of what changes by the minute, what changes a speed."""
    states = [list(_gpu_states(result)) for result in results]
    throttles = tuple(_throttle_reasons(state) for state in states)
    if len(set(throttles)) > 1:
        yield Difference("throttling after the run", throttles)
    for clock in ("sm_mhz", "memory_mhz"):
        values = [[gpu.get(clock) for gpu in state] for state in states]
        if any(_apart(values[0], other) for other in values[1:]):
            yield Difference(f"{clock} after the run", tuple(_list(state, clock) for state in states))


def _gpu_states(result: Measurement) -> Iterator[Mapping[str, Any]]:
    state = result.environment.get("state")
    after = state.get("after") if isinstance(state, Mapping) else None
    gpus = after.get("gpus", ()) if isinstance(after, Mapping) else ()
    yield from (gpu for gpu in gpus if isinstance(gpu, Mapping))


def _list(state: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(str(gpu.get(name, MISSING)) for gpu in state) or MISSING


def _throttle_reasons(state: Sequence[Mapping[str, Any]]) -> str:
    """What held the devices back, in words, each reason once."""
    return (
        ", ".join(sorted({throttle_text(gpu["throttle"]) for gpu in state if "throttle" in gpu})) or MISSING
    )


def _apart(one: Sequence[Any], other: Sequence[Any]) -> bool:
    if len(one) != len(other):
        return bool(one and other)
    return any(
        isinstance(a, int | float)
        and isinstance(b, int | float)
        and abs(a - b) > _CLOCK_TOLERANCE * max(a, b)
        for a, b in zip(one, other, strict=True)
    )

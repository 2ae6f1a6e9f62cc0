"""A run's surroundings, by topic, and what changed while it ran."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dashboard.measurements.facts import flatten

_TOPICS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Code", ("git.", "backend.", "model.", "protocol")),
    ("Devices", ("gpus.", "gpus")),
    ("Processor and memory", ("cpu.", "memory_bytes")),
    ("Libraries", ("python.", "python", "numpy.", "packages.")),
    ("System", ("system.",)),
)
_STATE = {
    "sm_mhz": "SM clock, MHz",
    "memory_mhz": "memory clock, MHz",
    "power_w": "power, W",
    "temperature_c": "temperature, °C",
    "throttle": "throttling",
}
_REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
    0x100: "display clocks",
}
"""Bits of NVML's clocks event reasons (nvml.h, nvmlClocksEventReason*)."""


@dataclass(frozen=True, slots=True)
class Topic:
    title: str
    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that changes by the minute, before the first timed run and after the last."""

    name: str
    before: str
    after: str


def topics(environment: Mapping[str, Any]) -> list[Topic]:
    """Every fact but the state, under its topic; what belongs to none stands under "Other"."""
    facts = [(k, v) for k, v in flatten(environment) if not k.startswith("state.")]
    found, rest = [], facts
    for title, beginnings in _TOPICS:
        mine = [fact for fact in rest if _belongs(fact[0], beginnings)]
        rest = [fact for fact in rest if fact not in mine]
        if mine:
            found.append(Topic(title, tuple(mine)))
    return [*found, Topic("Other", tuple(rest))] if rest else found


def _belongs(name: str, beginnings: tuple[str, ...]) -> bool:
    return any(name == b or (b.endswith(".") and name.startswith(b)) for b in beginnings)


def conditions(environment: Mapping[str, Any]) -> list[Condition]:
    """Clocks, power, temperature, throttling and load around the timed runs, as far as they were recorded."""
    state = environment.get("state")
    if not isinstance(state, Mapping):
        return []
    before, after = (dict(_state(state.get(moment))) for moment in ("before", "after"))
    names = dict.fromkeys([*before, *after])
    return [
        Condition(name, before.get(name, "not recorded"), after.get(name, "not recorded")) for name in names
    ]


def _state(moment: object) -> Iterator[tuple[str, str]]:
    if not isinstance(moment, Mapping):
        return
    gpus = moment.get("gpus")
    gpus = [gpu for gpu in gpus if isinstance(gpu, Mapping)] if isinstance(gpus, list) else []
    for number, gpu in enumerate(gpus):
        device = f"device {number}: " if len(gpus) > 1 else ""
        for key, title in _STATE.items():
            if key in gpu:
                yield device + title, throttle_text(gpu[key]) if key == "throttle" else str(gpu[key])
    if isinstance(load := moment.get("load_average"), list):
        yield "load average", ", ".join(str(value) for value in load)
    if "captured" in moment:
        yield "read at", str(moment["captured"])


def throttle_text(mask: object) -> str:
    """A driver's bit mask in words. What cannot be read stays as it is."""
    try:
        bits = int(str(mask), 0)
    except ValueError:
        return str(mask)
    if not bits:
        return "none"
    known = [words for bit, words in _REASONS.items() if bits & bit]
    unknown = bits & ~sum(_REASONS)
    return ", ".join([*known, *([f"{unknown:#x}"] if unknown else [])])

"""Values that are wrong in the ways that strangers' input is, drawn from a seeded generator."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

Make = Callable[[random.Random], Any]
_TEXTS = (
    "",
    "a",
    "é\N{ROCKET}",
    "\0",
    "\ud800",
    "x" * 5000,
    "null",
    "1",
    "-1",
    "../x",
    "%s{0}",
    "<b>",
)
_NUMBERS = (
    0,
    1,
    -1,
    2**31,
    2**53 + 1,
    2**64,
    -(2**70),
    10**400,
    0.5,
    -0.0,
    1e308,
    float("inf"),
    float("nan"),
)


def anything(rng: random.Random, depth: int = 2) -> Any:
    """Any JSON value, the awkward ones first."""
    kind = rng.randrange(7 if depth else 5)
    if kind == 5:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 6:
        return {rng.choice(_TEXTS): anything(rng, depth - 1) for _ in range(rng.randrange(4))}
    return (None, rng.random() < 0.5, rng.choice(_NUMBERS), rng.choice(_TEXTS), rng.uniform(-3, 300))[kind]


def of_schema(rng: random.Random, fields: Mapping[str, Make], must: tuple[str, ...] = ()) -> dict[str, Any]:
    """An object of the fields, some left out, some with a value that is not theirs, some unknown."""
    found = {name: fields[name](rng) for name in fields if name in must or rng.random() < 0.4}
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2))):
        found[rng.choice((*fields, "unknown"))] = anything(rng)
    if found and rng.random() < 0.05:
        del found[rng.choice(list(found))]
    return found


def damaged(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value with one to three places replaced, removed or doubled."""
    found = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = _place(rng, found)
        if holder is None:
            return anything(rng)
        act = rng.randrange(4)
        if act == 0:
            del holder[key]
        elif act == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = anything(rng)
    return found


def _place(rng: random.Random, value: Any) -> tuple[Any, Any]:
    """A container inside `value` and a key of it."""
    holder, key = None, None
    while isinstance(value, dict | list) and value:
        holder = value
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        value = value[key]
        if rng.random() < 0.3:
            break
    return holder, key


def as_text(rng: random.Random, value: Any) -> str:
    """JSON, now and then cut off or with a character that is none of its own."""
    text = json.dumps(value)
    if rng.random() < 0.05:
        at = rng.randrange(len(text) + 1)
        return rng.choice((text[:at], text[:at] + rng.choice('{}[]",:\\\0') + text[at:]))
    return text


def damaged_bytes(rng: random.Random, data: bytes, head: int) -> bytes:
    """A copy with bytes changed (mostly in the first `head`), cut off or put in."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(min(len(found), head)) if rng.random() < 0.9 else rng.randrange(len(found))
        act = rng.randrange(5)
        if act == 0:
            found[at] = rng.randrange(256)
        elif act == 1:
            found[at : at + 8] = rng.choice((b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7))
        elif act == 2:
            found[at:at] = bytes(rng.randrange(1, 9))
        elif act == 3:
            del found[at : at + rng.randrange(1, 9)]
        elif len(found) > 1:
            del found[at + 1 :]
        if not found:
            return b""
    return bytes(found)

"""The Lua that runs inside Redis, where checking and changing must be one step: one file a script.

Each script is safe to run again after a lost reply. They touch keys beyond KEYS (those of the request
ids that they meet), so they need one Redis (7.0 or newer, or Valkey), not a Redis Cluster.

A script sees the names of `_CONSTANTS` as local variables, and `--#include NAME` stands for the functions of
another file, once. An owner key is a hash: `worker` (the token of the process that may append, empty once
handed back), `attempts` (how many workers in a row began the request and neither handed it back nor got any
of it out), `began` (how many began it in all), `error` (what the last one said), `ttft_ms` (from creation to
the first token).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from engine.serving import messages

BENCH_OFFSET = 4e15
"""Added to a benchmark's score in the waiting set (microseconds since 1970): they go last."""
RELEASED = "(handed back)"
"""The consumer that holds what a worker handed back; no worker is called so."""
MOST_LOST = 5
"""After so many lost workers, wherever they got to, the next ones count as before."""
BENCH_MOST_LOST = 50
"""The same of a benchmark's point, which may run for minutes."""
LOST = "(lost)"
"""The owner of a request whose one worker is gone: if that worker wakes, it stays silent."""

_CONSTANTS: Mapping[str, str | float | tuple[str, ...]] = {
    "GROUP": messages.GROUP,
    "INTERACTIVE": messages.INTERACTIVE,
    "BENCH": messages.BENCH,
    "INBOXES": messages.INBOXES,
    "INTERACTIVE_SERVICE": messages.service_key(messages.INTERACTIVE),
    "BENCH_SERVICE": messages.service_key(messages.BENCH),
    "WAITING": messages.WAITING,
    "ENTRIES": messages.ENTRIES,
    "SHARES": messages.SHARES,
    "WORKERS": messages.WORKERS,
    # Beginnings of keys: an id or a name follows.
    "WORKER": messages.worker_key(""),
    "WORKER_INBOX": messages.worker_inbox(""),
    "OUT": messages.out_key(""),
    "CANCELLED": messages.cancel_key(""),
    "OWNER": messages.owner_key(""),
    "SHARE": "ml:share:",
    "HELD_REQUEST": "ml:held:",
    # Stands for the inbox and the entry of a request that waits for its submitter's share.
    "HELD": "-",
    # Added to its score: it comes after whatever is in the inboxes by now.
    "HELD_OFFSET": 2e15,
    "BENCH_OFFSET": BENCH_OFFSET,
    "RELEASED": RELEASED,
    "LOST": LOST,
    "MOST_LOST": MOST_LOST,
    "BENCH_MOST_LOST": BENCH_MOST_LOST,
    "EXPIRES_S": messages.EXPIRES_S,
    # How long a cancellation of what Redis does not know waits for its worker.
    "RECOVERY_S": 60,
    # Idle time given to a handed-back entry, so that the next worker claims it at once.
    "FOREVER_MS": 3_600_000,
    "SERVICE_SAMPLES": 32,
    "CONSUMER_IDLE_MS": 86_400_000,
}
_INCLUDE = re.compile(r"^--#include (\w+)\n", re.MULTILINE)


def compose(folder: Path, name: str, constants: Mapping[str, str | float | tuple[str, ...]]) -> str:
    """The script NAME.lua of `folder`, with its constants and the files that it includes."""
    lines = [f"local {constant} = {_literal(value)}\n" for constant, value in constants.items()]
    return "".join(lines) + _with_includes(folder, name, set())


def _with_includes(folder: Path, name: str, included: set[str]) -> str:
    def text_of(include: re.Match[str]) -> str:
        wanted = include[1]
        if wanted in included:
            return ""
        included.add(wanted)
        return _with_includes(folder, wanted, included)

    return _INCLUDE.sub(text_of, (folder / f"{name}.lua").read_text(encoding="utf-8"))


def _literal(value: str | float | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return "{" + ", ".join(map(_literal, value)) + "}"
    return json.dumps(value)  # Lua writes these strings and numbers as JSON does


def _script(name: str) -> str:
    return compose(Path(__file__).parent, name, _CONSTANTS)


SUBMIT = _script("submit")
CANCEL = _script("cancel")
TAKE = _script("take")
KEEP = _script("keep")
RELEASE = _script("release")
APPEND = _script("append")
DROP = _script("drop")
LOSE = _script("lose")
BURY = _script("bury")
TIDY = _script("tidy")

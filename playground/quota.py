"""How much anybody may ask for: token buckets in Redis, the same for the websocket and for HTTP.

A subject (a browser session, an address, an API key) has two buckets, each holding a minute's worth at most
and refilling evenly: one of requests, one of generated tokens. A request takes from the first when it is
admitted; what it generates is taken from the second as it comes, and may leave it in debt. So nobody has to
guess how long an answer will be, and whoever took more than a minute's worth waits until it is made good.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import structlog
from redis.exceptions import RedisError

from config.rates import Rate
from engine.serving.errors import explain_outage
from playground.background import in_background
from playground.quota_scripts import ADMIT, CHARGE
from playground.workers import Step, engine_script

log = structlog.get_logger(__name__)
What = Literal["requests", "tokens"]
CHARGED_TOKENS = 256
"""A generation under way is charged for every so many."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Who is counted: `name` tells it apart from all others of any kind."""

    kind: Literal["session", "address", "key"]
    name: str
    rate: Rate

    def bucket(self, what: What) -> str:
        return f"ml:quota:{self.kind}:{self.name}:{what}"


@dataclass(frozen=True, slots=True)
class Level:
    """One bucket after a request: what it holds of `limit`, and in how many seconds it is full again."""

    limit: int
    remaining: int
    full_s: float


Allowance = dict[What, Level]
"""What is left to one subject."""


class QuotaExceeded(Exception):
    """A subject's bucket is empty. `retry_s`: when it will hold enough. The message is for its sender."""

    def __init__(self, subject: Subject, what: What, retry_s: float, allowance: Allowance) -> None:
        limit = getattr(subject.rate, what)
        whose = {"session": "session", "address": "address", "key": "API key"}[subject.kind]
        unit = "requests" if what == "requests" else "generated tokens"
        super().__init__(
            f"this {whose} has used its {limit:,} {unit} a minute; try again in {wait(retry_s):,} s"
        )
        self.what = what
        self.retry_s = retry_s
        self.allowance = allowance


def wait(seconds: float) -> int:
    """Whole seconds to wait, as Retry-After says them: at least one."""
    return max(1, math.ceil(seconds))


def _bill(generation: str) -> str:
    return f"ml:bill:{generation}"


async def admit(
    subjects: Sequence[Subject], generations: Sequence[str] = (), *, requests: int = 1
) -> Allowance:
    """Takes `requests` from every subject, and notes whom the generations' tokens are charged to.

    Returns what is left to the last subject. Raises QuotaExceeded, having taken nothing from anybody, or
    QueueUnavailable.
    """
    if not subjects:
        return {}
    step = admission_step(subjects, generations, requests=requests)
    with explain_outage():
        reply = cast("list[Any]", await engine_script(ADMIT)(keys=step.keys, args=step.args))
    return allowance_of(subjects, reply)


def admission_step(subjects: Sequence[Subject], generations: Sequence[str], *, requests: int) -> Step:
    """What ADMIT is given."""
    keys = [subject.bucket(what) for subject in subjects for what in ("requests", "tokens")]
    return Step([*keys, *map(_bill, generations)], [len(subjects), requests, *_rates(subjects)])


def allowance_of(subjects: Sequence[Subject], reply: Sequence[Any]) -> Allowance:
    """What is left to the last subject, by ADMIT's reply. Raises QuotaExceeded."""
    lacking, wait_ms, *levels = reply
    left = [_level(limit, float(level)) for limit, level in zip(_rates(subjects), levels, strict=True)]
    if lacking:
        at = lacking - 1
        what: What = "tokens" if at % 2 else "requests"
        raise QuotaExceeded(subjects[at // 2], what, wait_ms / 1000, _allowance(left, at // 2))
    return _allowance(left, len(subjects) - 1)


def _rates(subjects: Sequence[Subject]) -> list[int]:
    return [limit for subject in subjects for limit in subject.rate]


async def charge(generation: str, tokens: int) -> None:
    """The generation has made `tokens` so far. May be said often and by several: each token counts once."""
    if not tokens:
        return
    try:
        await engine_script(CHARGE)(keys=[_bill(generation)], args=[tokens])
    except (RedisError, OSError) as error:
        log.warning("tokens_not_charged", generation=generation, tokens=tokens, error=str(error))


class Tally:
    """The tokens of one generation as somebody sees them come: charged now and then, and when told to."""

    def __init__(self, generation: str) -> None:
        self._generation = generation
        self._seen = 0
        self._charged = 0

    def count(self, tokens: int) -> None:
        """There are `tokens` in all by now."""
        self._seen = tokens
        if self._seen - self._charged >= CHARGED_TOKENS:
            self.settle()

    def settle(self) -> None:
        """Charges what has been seen, beside whatever the caller does: it may be being cancelled."""
        self._charged = self._seen
        in_background(charge(self._generation, self._seen))


def _level(limit: int, level: float) -> Level:
    return Level(limit, max(0, math.floor(level)), (limit - level) * 60 / limit)


def _allowance(levels: Sequence[Level], subject: int) -> Allowance:
    return {"requests": levels[2 * subject], "tokens": levels[2 * subject + 1]}

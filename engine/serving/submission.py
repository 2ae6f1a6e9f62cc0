"""A request on its way into an inbox: what scripts.SUBMIT is given, and what its reply means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from engine.serving import scripts
from engine.serving.errors import QueueFull, TooManyWaiting
from engine.serving.messages import BENCH, INBOX_LIMIT, Request


@dataclass(frozen=True, slots=True)
class FairShare:
    """Whose request it is, so that nobody's many requests keep everybody else waiting.

    At most `width` of the requests submitted under `name` are in the inbox or a worker's hands at once; up
    to `waiting` more are held outside and enter, in order, as those end. A share may lie inside another one,
    as a session's in its address's: then there must be room in both.
    """

    name: str
    width: int = 1
    waiting: int = 8
    within: FairShare | None = None

    @property
    def outermost_first(self) -> list[FairShare]:
        return [*(self.within.outermost_first if self.within else ()), self]


@dataclass(frozen=True)
class Submission:
    """`AsyncClient.submit` says what the fields mean."""

    request: Request
    limit: int = INBOX_LIMIT
    share: FairShare | None = None
    kept: int = 0

    @cached_property
    def json(self) -> str:
        """The request, encoded once: a prompt may be long. Raises RequestError if a text is not Unicode."""
        return self.request.to_entry()["json"]

    @property
    def keys(self) -> list[str]:
        return [self.request.inbox]

    @property
    def args(self) -> list[str | int | float]:
        offset = scripts.BENCH_OFFSET if self.request.inbox == BENCH else 0
        shares = self.share.outermost_first if self.share else ()
        listed = [value for share in shares for value in (share.name, share.width, share.waiting)]
        return [self.request.id, self.json, self.limit, self.kept, offset, *listed]

    def place(self, reply: Sequence[str | int]) -> int:
        """The request's place in the queue, by the script's reply. Raises QueueFull or TooManyWaiting."""
        verdict, number = reply
        if verdict == "full":
            raise QueueFull(
                f"the {self.request.kind} queue holds {number} requests and takes at most {self.limit};"
                " try again in a moment"
            )
        if verdict == "crowded":
            raise TooManyWaiting(
                f"{number} of your generations are under way or wait already; let one end first"
            )
        return int(number)

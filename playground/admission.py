"""Who asks, and the one way from there into the engine's inbox, for the websocket and for HTTP alike."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings
from msgspec.structs import replace

from config.addresses import visitor_address
from engine.errors import EngineError
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import GenerateRequest, Heartbeat
from engine.serving.submission import FairShare, Submission
from playground.background import in_background
from playground.entrance import enter
from playground.models import ApiKey
from playground.quota import Allowance, Subject
from playground.workers import engine_client

log = structlog.get_logger(__name__)
SESSION_WAITING = 8
"""Of one browser session as many generations run as `width_of` one worker (a race names several), and so many
more wait."""
ADDRESS_WAITING = 32
"""Of one address as many run as `width_of` all workers, and so many wait: sessions are free to make."""
API_WIDTH, API_WAITING = 4, 32
"""The same of an API key, whatever the address: as many run at least."""
MOST_ROWS_OF_ONE = 3
"""Of a worker that takes more requests at once than this, one visitor may have all but one."""
KEPT = 8
"""One in so many places of the queue is kept for callers with nothing in it, and as many more for keys."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Whoever sends a request: a page has a session, a client of the API may have a key."""

    address: str = ""
    session: str = ""
    key: ApiKey | None = None

    @property
    def subjects(self) -> list[Subject]:
        """Who is counted for it, the one that it is told about last. A key answers for itself alone."""
        if self.key is not None:
            rate = self.key.rate
            return [Subject("key", self.key.prefix, rate)] if rate else []
        address, session = settings.LIMIT_ADDRESS, settings.LIMIT_SESSION
        found = [Subject("address", self.address, address)] if self.address and address else []
        return [*found, Subject("session", self.session, session)] if self.session and session else found

    @property
    def cache_salt(self) -> str:
        """Who may go on from the prompts that this caller sent; empty for nobody, where it is not known."""
        if settings.SHARE_PREFIX_CACHE:
            return "everybody"
        if self.key is not None:
            return f"key:{self.key.pk}"
        return f"session:{self.session}" if self.session else ""

    def share(self, worker: str, rows: Sequence[int]) -> FairShare | None:
        """What its requests for `worker` (empty: any) count towards. `rows` has how many requests each worker
        that may take them takes at once.

        None for a caller without limits.
        """
        widths = [width_of(one) for one in rows]
        share = None
        for subject in self.subjects:
            if subject.kind == "key":
                return FairShare(f"key:{subject.name}", max(API_WIDTH, *widths), API_WAITING)
            if subject.kind == "address":
                share = FairShare(f"address:{subject.name}:{worker}", sum(widths), ADDRESS_WAITING)
            else:
                share = FairShare(f"session:{subject.name}:{worker}", max(widths), SESSION_WAITING, share)
        return share

    def places(self, limit: int) -> tuple[int, int]:
        """Of a queue's `limit` places how many it may use, and how many of those only with nothing in it."""
        kept = limit // KEPT
        return (limit if self.key is not None else limit - kept), kept


def width_of(rows: int) -> int:
    """How many generations of one visitor may run at once on a worker that takes `rows`: a race's and the
    answers to one prompt run together, and where there are rows enough one is left to others."""
    return rows if rows <= MOST_ROWS_OF_ONE else rows - 1


def caller_of(scope: Mapping[str, Any], *, session: str = "", key: ApiKey | None = None) -> Caller:
    """Whoever is at the other end of an ASGI connection."""
    return Caller(visitor_address(scope), session, key)


async def submit(
    requests: Sequence[GenerateRequest],
    caller: Caller,
    *,
    workers: Sequence[Heartbeat],
    of_page: bool = False,
) -> tuple[list[int], Allowance]:
    """Submits all of them or none, to an inbox that `workers` serve.

    What is submitted `of_page` is kept as a row: its bytes count towards what the caller's address may
    leave, and its session can come back for it. Returns the place of each in the queue, and what is left to
    the caller. Raises QuotaExceeded, TooMuch, DiskFull, TooManyWaiting, QueueFull or QueueUnavailable.
    """
    salt = caller.cache_salt or (f"request:{requests[0].id}" if len(requests) > 1 else "")
    submissions = [_submission(request, caller, salt, workers) for request in requests]
    names = [request.id for request in requests]
    places: list[int] = []
    try:
        place, allowance = await enter(
            submissions[0],
            caller.subjects,
            names,
            address=caller.address,
            page_of=caller.session if of_page else None,
        )
        places.append(place)
        for each in submissions[1:]:
            places.append(await engine_client().submit(each.request, each.limit, each.share, each.kept))
    except BaseException as error:
        # A client that leaves cancels this task. Without a reply nobody knows whether the next one arrived.
        unknown = isinstance(error, asyncio.CancelledError | QueueUnavailable)
        if submitted := requests[: len(places) + unknown]:
            in_background(_withdraw(submitted))
        raise
    return places, allowance


def _submission(
    request: GenerateRequest, caller: Caller, salt: str, workers: Sequence[Heartbeat]
) -> Submission:
    """Several answers to one prompt have a `salt` of their own at least, so that it is read once."""
    # One worker alone serves an inbox of its own name.
    rows = [worker.rows for worker in workers if request.worker in ("", worker.name)] or [1]
    limit, kept = caller.places(settings.QUEUE_LIMIT * len(rows))
    return Submission(replace(request, cache_salt=salt), limit, caller.share(request.worker, rows), kept)


async def _withdraw(requests: Sequence[GenerateRequest]) -> None:
    for request in requests:
        try:
            await engine_client().cancel(request.id)
        except EngineError as error:
            log.warning("not_withdrawn", generation=request.id, error=str(error))

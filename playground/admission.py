"""Who asks, and the one way from there into the engine's inbox, for the websocket and for HTTP alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from django.conf import settings

from config.addresses import visitor_address
from engine.errors import EngineError
from engine.serving.client import FairShare
from engine.serving.messages import GenerateRequest
from playground import quota
from playground.background import in_background
from playground.models import ApiKey
from playground.quota import Allowance, Subject
from playground.workers import engine_client

log = structlog.get_logger(__name__)
SESSION_WIDTH, SESSION_WAITING = 1, 8
"""Of one browser session one generation runs for a worker (a race names several), and so many more wait."""
API_WIDTH, API_WAITING = 4, 32
"""The same of an API key, or of an address that uses the API without one."""


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

    def share(self, worker: str) -> FairShare | None:
        """What its requests for `worker` (empty: any) count towards; None for a caller without limits."""
        subjects = self.subjects
        if not subjects:
            return None
        whose = subjects[-1]
        if whose.kind == "session":
            return FairShare(f"session:{whose.name}:{worker}", SESSION_WIDTH, SESSION_WAITING)
        return FairShare(f"{whose.kind}:{whose.name}", API_WIDTH, API_WAITING)


def caller_of(scope: Mapping[str, Any], *, session: str = "", key: ApiKey | None = None) -> Caller:
    """Whoever is at the other end of an ASGI connection."""
    return Caller(visitor_address(scope), session, key)


async def submit(
    requests: Sequence[GenerateRequest], caller: Caller, *, workers: int
) -> tuple[list[int], Allowance]:
    """Submits all of them or none, to an inbox that `workers` serve.

    Returns the place of each in the queue, and what is left to the caller. Raises QuotaExceeded,
    TooManyWaiting, QueueFull or QueueUnavailable.
    """
    allowance = await quota.admit(
        caller.subjects, [request.id for request in requests], requests=len(requests)
    )
    places: list[int] = []
    try:
        for request in requests:
            salted = replace(request, cache_salt=caller.cache_salt)
            # One worker alone serves an inbox of its own name.
            limit = settings.QUEUE_LIMIT * (1 if request.worker else max(1, workers))
            places.append(await engine_client().submit(salted, limit, caller.share(request.worker)))
    except BaseException:  # a client that leaves cancels this task
        # The one that was being submitted may be in the inbox: only its reply is known to be missing.
        in_background(_withdraw(requests[: len(places) + 1]))
        raise
    return places, allowance


async def _withdraw(requests: Sequence[GenerateRequest]) -> None:
    for request in requests:
        try:
            await engine_client().cancel(request.id)
        except EngineError as error:
            log.warning("not_withdrawn", generation=request.id, error=str(error))

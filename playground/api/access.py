"""Who asks: the API key in a request, or the address of whoever has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest

from engine import replies
from playground import quota
from playground.admission import Caller, caller_of
from playground.api.allowance import allowance_headers
from playground.api.errors import ApiError, api_error, refusals
from playground.keys import MARK, find_key

if TYPE_CHECKING:
    from django.core.handlers.asgi import ASGIRequest

_SHOWN = len(MARK) + 8
"""How much of a wrong key an error repeats: no more than the admin shows of a right one."""
NEEDED = (
    "You must provide an API key in the Authorization header, as in 'Bearer ml-…'; an administrator of this"
    " server makes keys"
)


async def caller(request: HttpRequest) -> Caller:
    """Raises ApiError: 401 for a key that is not valid, or for none where one is required.

    What does not look like a key of this server counts as none: clients insist on sending something.
    """
    scope = cast("ASGIRequest", request).scope
    given = _bearer(request.headers.get("Authorization", ""))
    if not given.startswith(MARK):
        if settings.API_KEY_REQUIRED:
            raise _unauthorised(NEEDED)
        return caller_of(scope)
    try:
        key = await find_key(given)
    except DatabaseError as error:
        raise api_error(error) from error
    if key is None:
        await count(caller_of(scope))
        raise _unauthorised(
            f"Incorrect API key provided: {given[:_SHOWN]}…; it is unknown or has been revoked:"
            " ask an administrator of this server for another"
        )
    return caller_of(scope, key=key)


async def count(asking: Caller) -> dict[str, str]:
    """Counts one request that is no generation; returns what is left, as headers. Raises ApiError."""
    with refusals():
        return allowance_headers(await quota.admit(asking.subjects))


def _unauthorised(message: str) -> ApiError:
    return ApiError(replies.INVALID_KEY, message, headers={"WWW-Authenticate": "Bearer"})


def _bearer(header: str) -> str:
    scheme, _, given = header.partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""

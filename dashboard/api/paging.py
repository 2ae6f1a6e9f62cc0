"""Pages by key: a page begins after the last row of the one before, whatever was stored meanwhile."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Self, TypeVar

from django.db.models import Q, QuerySet
from django.http import HttpRequest

_CURSOR = re.compile(r"(-?[0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Rows = TypeVar("Rows", bound="QuerySet[Any, Any]")


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of a page: when it was measured, to the microsecond, and its key."""

    created: datetime
    pk: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Raises ValueError for what `str` did not write."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError(f"cursor is {text[:40]!r}; give the one of a page's `next`, or none")
        try:
            return cls(_EPOCH + timedelta(microseconds=int(found[1])), int(found[2]))
        except OverflowError as error:
            raise ValueError(f"cursor {text[:40]!r} is no time; give the one of a page's `next`") from error

    def __str__(self) -> str:
        return f"{(self.created - _EPOCH) // timedelta(microseconds=1)}.{self.pk}"


def newest_first(rows: Rows, after: Cursor | None, limit: int) -> tuple[list[Any], Cursor | None]:
    """Up to `limit` rows that come after the cursor, and the cursor of the next page if there is one."""
    if after is not None:
        rows = rows.filter(Q(created__lt=after.created) | Q(created=after.created, pk__lt=after.pk))
    return _page_of(rows.order_by("-created", "-pk"), limit)


def oldest_first(rows: Rows, after: Cursor | None, limit: int) -> tuple[list[Any], Cursor | None]:
    """The same, the other way round."""
    if after is not None:
        rows = rows.filter(Q(created__gt=after.created) | Q(created=after.created, pk__gt=after.pk))
    return _page_of(rows.order_by("created", "pk"), limit)


def _page_of(rows: QuerySet[Any, Any], limit: int) -> tuple[list[Any], Cursor | None]:
    found: Sequence[Any] = list(rows[: limit + 1])
    page = list(found[:limit])
    return page, Cursor(page[-1].created, page[-1].pk) if len(found) > limit else None


def next_url(request: HttpRequest, cursor: Cursor | None) -> str | None:
    """The address of the next page: this one's with another cursor."""
    if cursor is None:
        return None
    query = request.GET.copy()
    query["cursor"] = str(cursor)
    return f"{request.path}?{query.urlencode()}"

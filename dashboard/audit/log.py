"""The audit log: one line for every act that changes what is measured, or what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db.models import QuerySet

from dashboard.models import AuditEntry

if TYPE_CHECKING:
    from django.contrib.auth.models import User


ACTS = (
    "sweep started",
    "sweep cancelled",
    "failed points retried",
    "sweep defined",
    "sweep changed",
    "sweep deleted",
    "threshold changed",
    "regression opened",
    "regression acknowledged",
    "regression accepted",
    "regression commented on",
    "regression recovered",
    "reference pinned",
    "reference unpinned",
    "note added",
    "note removed",
)
"""Every act that is written; `record` refuses another, so that a filter by act misses none."""


def record(
    act: str,
    about: object,
    *,
    who: User | None = None,
    by: str = "the system",
    url: str = "",
    detail: str = "",
) -> None:
    """Writes one line, in the caller's transaction. `by` names what acted where there is no account.

    Raises ValueError for an act that ACTS does not have.
    """
    if act not in ACTS:
        raise ValueError(f"{act!r} is not one of the acts of the audit log")
    AuditEntry.objects.create(
        who=who,
        by=(who.get_username() if who else by)[:150],
        act=act,
        about=str(about)[:300],
        url=url[:200],
        detail=detail[:500],
    )


def entries(*, act: str = "", by: str = "") -> QuerySet[AuditEntry, Any]:
    """The log, newest first, of one act or one actor if they are given."""
    found = AuditEntry.objects.all()
    if act:
        found = found.filter(act=act)
    if by:
        found = found.filter(by=by)
    return found

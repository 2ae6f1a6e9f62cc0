"""Notes on a history: written by a person, or read from a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet
from django.utils import timezone

from dashboard.audit import log as audit
from dashboard.measurements.configurations import NATURAL_KEY
from dashboard.models import Annotation, Configuration
from engine.errors import MeasurementError

if TYPE_CHECKING:
    from django.contrib.auth.models import User

MAX_SHOWN = 200
"""Notes on one page, the newest."""
MAX_IN_FILE = 10_000


def notes_on(configuration_ids: Iterable[int]) -> QuerySet[Annotation]:
    """Notes on those configurations, and on all; the newest first, MAX_SHOWN at most."""
    on_them = Q(configuration__in=list(configuration_ids)) | Q(configuration__isnull=True)
    return (
        Annotation.objects.filter(on_them)
        .select_related("who", "configuration")
        .order_by("-at", "-pk")[:MAX_SHOWN]
    )


def add_note(
    *, who: User, text: str, at: datetime, git_sha: str = "", configuration: Configuration | None = None
) -> Annotation:
    """A note typed by a person. Raises ValidationError."""
    note = Annotation(who=who, text=text.strip(), at=at, git_sha=git_sha, configuration=configuration)
    note.full_clean()
    with transaction.atomic():
        note.save()
        audit.record("note added", configuration or "every configuration", who=who, detail=note.text)
    return note


def remove_note(*, note: Annotation, who: User) -> None:
    with transaction.atomic():
        audit.record("note removed", note.configuration or "every configuration", who=who, detail=note.text)
        note.delete()


def import_notes(*, entries: object, source: str) -> tuple[int, int]:
    """Stores the notes of a file (`{"notes": [{"at", "text", "git_sha"?, "where"?}]}`), all or none.

    `where` names values of a configuration (NATURAL_KEY); the note is put on each that has them all. Without
    it the note is on every configuration. How many were added, and how many known. Raises MeasurementError.
    """
    if not isinstance(entries, list) or len(entries) > MAX_IN_FILE:
        raise MeasurementError(f"`notes` is a list of at most {MAX_IN_FILE:,} notes")
    added = known = 0
    with transaction.atomic():
        for number, entry in enumerate(entries, 1):
            try:
                for key, columns in _columns(entry):
                    _, new = _store(key, {**columns, "source": source[:200]})
                    added, known = added + new, known + (not new)
            except ValidationError as error:
                raise MeasurementError(f"note {number}: {'; '.join(error.messages)}") from error
            except (KeyError, TypeError, ValueError) as error:
                raise MeasurementError(f"note {number} has the wrong form: {error!r}") from error
    return added, known


def _store(digest: str, columns: dict[str, Any]) -> tuple[Annotation, bool]:
    Annotation(**columns).full_clean()
    return Annotation.objects.get_or_create(digest=digest, defaults=columns)


def _columns(entry: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """A digest and the columns for each configuration that the entry is about."""
    at = datetime.fromisoformat(entry["at"])
    columns = {
        "at": at if at.tzinfo else timezone.make_aware(at),
        "text": str(entry["text"]).strip(),
        "git_sha": str(entry.get("git_sha", "")),
    }
    where = dict(entry.get("where", {}))
    if unknown := set(where) - set(NATURAL_KEY):
        raise ValueError(f"`where` names {', '.join(sorted(unknown))}; it may name {', '.join(NATURAL_KEY)}")
    about: list[Configuration | None] = list(Configuration.objects.filter(**where)) if where else [None]
    for configuration in about:
        text = json.dumps([entry, configuration.pk if configuration else None], sort_keys=True)
        yield hashlib.sha256(text.encode()).hexdigest(), {**columns, "configuration": configuration}

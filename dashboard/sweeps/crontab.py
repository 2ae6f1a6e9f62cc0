"""Crontabs as a person types them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery.schedules import ParseException, crontab
from django.core.exceptions import ValidationError

FIELDS = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def parse_crontab(text: str) -> dict[str, str]:
    """ "30 2 * * 1-5" as keyword arguments of a CrontabSchedule. Raises ValidationError."""
    parts = text.split()
    if len(parts) != len(FIELDS):
        raise ValidationError(
            f"The schedule {text!r} has {len(parts)} fields; it needs five: minute, hour, day of month, "
            'month, day of week, as in "30 2 * * *" (every night at 02:30 UTC).'
        )
    fields = dict(zip(FIELDS, parts, strict=True))
    try:
        crontab(**fields)
    except (ParseException, ValueError, KeyError) as error:
        raise ValidationError(f"The schedule {text!r} cannot be read: {error}.") from error
    return fields


def format_crontab(schedule: object) -> str:
    """The same five fields of a CrontabSchedule, as text."""
    return " ".join(str(getattr(schedule, field)) for field in FIELDS)


LOOK_BACK_DAYS = 4 * 366
"""Far enough for a 29 February."""


def latest_slot(text: str, now: datetime) -> datetime | None:
    """The last time at or before `now` that the crontab `text` names (UTC); None if none in four years.

    Raises ValidationError if it is not a crontab.
    """
    times: Any = crontab(**parse_crontab(text))  # the stubs leave out its sets
    now = now.astimezone(UTC)
    for back in range(LOOK_BACK_DAYS):
        day = (now - timedelta(days=back)).date()
        # Celery counts weekdays from Sunday, as cron does.
        if not (
            day.month in times.month_of_year
            and day.day in times.day_of_month
            and day.isoweekday() % 7 in times.day_of_week
        ):
            continue
        for hour in sorted(times.hour, reverse=True):
            for minute in sorted(times.minute, reverse=True):
                slot = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                if slot <= now:
                    return slot
    return None

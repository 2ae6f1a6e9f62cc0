"""Crontabs as a person types them."""

from __future__ import annotations

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

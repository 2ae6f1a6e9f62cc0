"""A number of days, as a setting gives it."""

from __future__ import annotations

from django.core.exceptions import ImproperlyConfigured

LONGEST = 36_500


def days(name: str, text: str) -> int:
    """The days that the variable `name` asks for. Raises ImproperlyConfigured."""
    if not text.isdecimal() or not 1 <= int(text) <= LONGEST:
        raise ImproperlyConfigured(
            f"{name} is {text[:20]!r}; it must be a whole number of days from 1 to {LONGEST:,}"
        )
    return int(text)

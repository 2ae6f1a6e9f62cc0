"""Text from a request, made safe for a query."""

from __future__ import annotations


def without_nul(text: str) -> str:
    """PostgreSQL takes no text with a null character, not even to look for it."""
    return text.replace("\0", "")

"""Figures as a person reads them, as static/src/playground/format.js writes them."""

from __future__ import annotations

from django import template

register = template.Library()


@register.filter
def rate(tok_s: float) -> str:
    """Tokens a second, three figures or more."""
    if not tok_s:
        return "–"
    return f"{tok_s:,.1f}" if tok_s < 100 else f"{tok_s:,.0f}"


@register.filter
def duration(ms: float) -> str:
    """A time in the unit that suits it."""
    if ms < 9.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 99_950:
        return f"{ms / 1000:.2f} s" if ms < 9_995 else f"{ms / 1000:.1f} s"
    return f"{ms // 60_000:.0f} min {ms % 60_000 // 1000:.0f} s"

"""What is left to a caller, in the headers that OpenAI's clients and proxies read."""

from __future__ import annotations

from playground.quota import Allowance


def allowance_headers(allowance: Allowance) -> dict[str, str]:
    """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`; none for a caller without limits.

    The reset is when the bucket is full again, as in `12.5s`.
    """
    headers: dict[str, str] = {}
    for what, level in allowance.items():
        headers[f"x-ratelimit-limit-{what}"] = str(level.limit)
        headers[f"x-ratelimit-remaining-{what}"] = str(level.remaining)
        headers[f"x-ratelimit-reset-{what}"] = f"{max(0.0, level.full_s):.1f}s"
    return headers

"""What the playground and the API accept, and what they assume where nothing is said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine.sampling import OPTIONS, PLAYGROUND, SamplingParams


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes are bytes of UTF-8. A model's own context is usually the tighter limit; its worker checks it."""

    prompt_bytes: int = 64 * 1024
    """Prompt and suffix, or all chat messages, together."""
    messages: int = 256
    max_tokens: int = 32768
    stop_strings: int = 16
    stop_bytes: int = 256
    """Of one stop string."""
    choices: int = 16
    """Of one answer of the API, all its prompts together."""


LIMITS = Limits()
DEFAULTS: dict[str, Any] = {
    "max_tokens": 256,
    "answer_tokens": 1024,
    "sampling": {
        **{option.name: getattr(PLAYGROUND, option.name) for option in OPTIONS},
        "seed": None,
    },
    "stop": [],
}
"""What the page starts with."""
API_SAMPLING = SamplingParams(temperature=1.0)
"""As the OpenAI API: draws from the model's whole distribution unless told otherwise."""
SAMPLING_OPTIONS: list[dict[str, Any]] = [
    {
        "name": option.name,
        "greedy": option.default,
        "api": None if option.name == "seed" else getattr(API_SAMPLING, option.name),
        "openai": option.openai,
    }
    for option in OPTIONS
]
"""Values for greedy and for an API request that leaves the option out, for the page's scripts."""

BODY_BYTES = 4 * LIMITS.prompt_bytes
"""The largest request body or socket frame: JSON may write one byte as six (`\\u0000`), text rarely does."""

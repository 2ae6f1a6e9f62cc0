"""Which parameters of the OpenAI API mean something here.

Four kinds: those that are obeyed; those that cannot change the text and are ignored; those that would change
its meaning and are refused unless they ask for nothing; and unknown ones, refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from engine import replies
from engine.sampling import OPTIONS
from playground.validation import Invalid, shown

_OBEYED = {
    "model", "stream", "stream_options", "stop", "n", "logprobs", "max_tokens", "ignore_eos",
    "logit_bias",
    *(option.name for option in OPTIONS),
}  # fmt: skip
_IGNORED = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "prediction", "verbosity",
}  # fmt: skip


def _is_empty(value: object) -> bool:
    return value in (None, False, [], {}, "none", "auto")


_REFUSED_UNLESS: dict[str, Callable[[object], bool]] = {
    "echo": _is_empty,
    "tools": _is_empty,
    "tool_choice": _is_empty,
    "functions": _is_empty,
    "function_call": _is_empty,
    "response_format": lambda value: value in (None, {"type": "text"}),
    "modalities": lambda value: value in (None, ["text"]),
    "audio": _is_empty,
    "reasoning_effort": _is_empty,
    "web_search_options": _is_empty,
}
_COMPLETION_ONLY = {"prompt", "suffix", "best_of", "echo"}
_CHAT_ONLY = {
    "messages", "max_completion_tokens", "top_logprobs", "tools", "tool_choice", "functions", "function_call",
    "response_format", "modalities", "audio", "reasoning_effort", "web_search_options",
}  # fmt: skip


def check_supported(data: Mapping[str, Any], *, chat: bool) -> None:
    """Raises Invalid for a parameter that nobody knows, or that asks for what is not done here."""
    known = _OBEYED | _IGNORED | set(_REFUSED_UNLESS) | _COMPLETION_ONLY | _CHAT_ONLY
    known -= _COMPLETION_ONLY if chat else _CHAT_ONLY
    for name, value in data.items():
        if name not in known:
            raise Invalid(
                f"Unrecognized request argument supplied: {shown(name)}", name, replies.UNKNOWN_PARAMETER
            )
        asks_nothing = _REFUSED_UNLESS.get(name)
        if asks_nothing is not None and not asks_nothing(value):
            raise unsupported_error(name, value)


def unsupported_error(name: str, value: object) -> Invalid:
    return Invalid(
        f"{name} is {shown(value)}, which this server does not support: leave it out",
        name,
        replies.UNSUPPORTED,
    )

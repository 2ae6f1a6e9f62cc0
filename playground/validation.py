"""Reading untrusted JSON: each reader returns a value of the right type or says what is wrong with it.

The socket and the HTTP API share them; `Invalid.param` names the member, as the OpenAI API does.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, cast

from engine import replies
from engine.errors import RequestError
from engine.models.prompt import ChatMessage
from engine.replies import Reply
from engine.sampling import BIAS_LIMIT, OPTIONS, Option, SamplingParams
from playground.limits import LIMITS

ROLES = ("system", "user", "assistant")
SEED_BITS = 32
"""Of a seed that the server draws: short enough to read out, and exact in JavaScript."""
_LEAST = {"seed": -(2**63), "top_k": -1}
"""Where clients may go below the option's range: a seed's two's complement; some write -1 for "all"."""


class Invalid(Exception):
    """A member of a request is missing or wrong. The message is a whole sentence for its sender."""

    def __init__(self, message: str, param: str = "", reply: Reply = replies.INVALID) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.reply = reply


def text_of(data: Mapping[str, Any], name: str, *, default: str | None = None) -> str | None:
    """A string member. Raises Invalid for text that `check_unicode` refuses."""
    value = data.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise Invalid(f"{name} is {kind_of(value)}; it must be a string", name)
    check_unicode(value, name)
    return value


def check_unicode(value: str, name: str) -> None:
    """Refuses lone surrogates, which have no UTF-8 form, and NUL, which PostgreSQL cannot keep."""
    if "\0" in value:
        raise Invalid(f"{name} holds a NUL at character {value.index(chr(0))}; leave it out", name)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{name} holds half a surrogate pair at character {error.start}", name) from error


def whole_of(data: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number within [low, high], or None where it is missing."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0:  # NaN's is NaN
        raise Invalid(f"{name} is {shown(value)}; it must be a whole number", name)
    if not low <= value <= high:
        raise Invalid(f"{name} is {shown(value)}; allowed are {low} to {high}", name)
    return int(value)


def number_of(data: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A finite number within [low, high], or None where it is missing."""
    value = data.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Invalid(f"{name} is {shown(value)}; it must be a number", name)
    if not low <= value <= high:  # refuses NaN and infinity too
        raise Invalid(f"{name} is {shown(value)}; allowed are {low:g} to {high:g}", name)
    return float(value)


def sampling_of(data: Mapping[str, Any], defaults: SamplingParams) -> SamplingParams:
    """Sampling members of `data`; a seed is drawn where none is given."""
    given = [option for option in OPTIONS if data.get(option.name) is not None]
    found = {option.name: _option_of(data, option) for option in given}
    found.setdefault("seed", secrets.randbits(SEED_BITS))
    if "top_k" in found:
        found["top_k"] = max(0, found["top_k"])
    found["seed"] %= 2**64
    if data.get("logit_bias") is not None:
        found["logit_bias"] = _bias_of(data["logit_bias"])
    try:
        return replace(defaults, **found)
    except RequestError as error:
        raise Invalid(str(error), str(error).partition(" ")[0]) from error


def _bias_of(value: object) -> dict[int, float]:
    """Token ids, which JSON writes as strings, and what is added to their logits."""
    if not isinstance(value, dict):
        raise Invalid(f"logit_bias is {kind_of(value)}; it must be an object", "logit_bias")
    wrong = next((t for t in value if not (t.isascii() and t.isdecimal() and len(t) <= 10)), None)
    if wrong is not None:
        raise Invalid(f"logit_bias names {shown(wrong)}; its names must be token ids", "logit_bias")
    return {
        int(token): number_of({"logit_bias": bias}, "logit_bias", -BIAS_LIMIT, BIAS_LIMIT) or 0.0
        for token, bias in value.items()
    }


def _option_of(data: Mapping[str, Any], option: Option) -> Any:
    low = _LEAST.get(option.name, option.low)
    if option.whole:
        return whole_of(data, option.name, int(low), int(option.high))
    return number_of(data, option.name, low, option.high)


def stop_of(value: object, name: str = "stop") -> tuple[str, ...]:
    """Stop strings: a string, a list of them, or nothing."""
    if value is None:
        return ()
    strings: Sequence[object] = [value] if isinstance(value, str) else cast("Sequence[object]", value)
    if not isinstance(strings, list):
        raise Invalid(f"{name} is {kind_of(value)}; it must be a string or an array of strings", name)
    if len(strings) > LIMITS.stop_strings:
        raise Invalid(f"{name} has {len(strings)} strings; at most {LIMITS.stop_strings} are taken", name)
    return tuple(_stop_string(one, name) for one in strings)


def _stop_string(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise Invalid(f"{name} holds {kind_of(value)}; it may hold strings only", name)
    check_unicode(value, name)
    if not value:
        raise Invalid(f"{name} holds an empty string, which would stop at once: leave it out", name)
    if len(value.encode()) > LIMITS.stop_bytes:
        raise Invalid(f"{name} holds a string of over {LIMITS.stop_bytes} bytes; shorten it", name)
    return value


def messages_of(value: object, name: str = "messages") -> tuple[ChatMessage, ...]:
    """Chat messages. The content is a string or a list of text parts; `developer` counts as `system`."""
    if not isinstance(value, list) or not value:
        raise Invalid(f"{name} must be an array of at least one message", name)
    if len(value) > LIMITS.messages:
        raise Invalid(f"{name} has {len(value)} messages; at most {LIMITS.messages} are taken", name)
    return tuple(_message(one, f"{name}[{index}]") for index, one in enumerate(value))


def _message(value: object, name: str) -> ChatMessage:
    if not isinstance(value, dict):
        raise Invalid(f"{name} is {kind_of(value)}; it must be an object with role and content", name)
    role = value.get("role")
    role = "system" if role == "developer" else role
    if role not in ROLES:
        raise Invalid(
            f"{name}.role is {shown(role)}; allowed are developer, {', '.join(ROLES)}", f"{name}.role"
        )
    content = _content(value.get("content"), f"{name}.content")
    return ChatMessage(cast("Literal['system', 'user', 'assistant']", role), content)


def _content(value: object, name: str) -> str:
    if isinstance(value, str):
        check_unicode(value, name)
        return value
    if not isinstance(value, list):
        raise Invalid(f"{name} is {kind_of(value)}; it must be a string or an array of text parts", name)
    parts = []
    for part in value:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise Invalid(f"{name} holds something other than text, which is all the models here read", name)
        check_unicode(part["text"], name)
        parts.append(part["text"])
    return "".join(parts)


def check_prompt_size(*texts: str | None) -> None:
    """Raises Invalid if the texts exceed the limit together."""
    size = sum(len(text.encode()) for text in texts if text)
    if size > LIMITS.prompt_bytes:
        raise Invalid(
            f"the prompt has {size:,} bytes; at most {LIMITS.prompt_bytes:,} are taken: shorten it",
            "prompt",
            replies.TOO_LARGE,
        )


def kind_of(value: object) -> str:
    """What JSON calls the type of `value`, with its article."""
    kinds: list[tuple[type, str]] = [
        (bool, "a boolean"),
        (int, "a number"),
        (float, "a number"),
        (str, "a string"),
        (list, "an array"),
        (dict, "an object"),
    ]
    return next((name for kind, name in kinds if isinstance(value, kind)), "null")


def shown(value: object) -> str:
    """`value` as JSON writes it, for a message, never longer than a line."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."

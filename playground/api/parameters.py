"""What a request to the API may hold, and what becomes of it.

Four kinds of parameter: those that are obeyed; those that cannot change the text and are ignored; those
that would change its meaning and are refused unless they ask for nothing; and unknown ones, refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.http.request import RawPostDataException, UnreadablePostError

from engine.backends.base import SamplingParams
from engine.serving.messages import GenerateRequest, Prompt
from playground.api.errors import ApiError
from playground.limits import BODY_BYTES, LIMITS
from playground.protocol import new_generation_id
from playground.validation import (
    Invalid,
    check_prompt_size,
    kind_of,
    messages_of,
    sampling_of,
    shown,
    stop_of,
    text_of,
    whole_of,
)

COMPLETION_TOKENS = 16
"""max_tokens of /v1/completions where nothing is said: the OpenAI API's own default."""
SAMPLING = SamplingParams(temperature=1.0)
"""As the OpenAI API: draws from the model's whole distribution unless told otherwise."""

_OBEYED = {
    "model", "stream", "stream_options", "stop", "seed", "n", "max_tokens",
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty",
}  # fmt: skip
_IGNORED = {
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
    "prompt_cache_retention", "parallel_tool_calls", "prediction", "verbosity",
}  # fmt: skip


def _is_zero(value: object) -> bool:
    return value in (0, None)


def _is_empty(value: object) -> bool:
    return value in (None, False, [], {}, "none", "auto")


_REFUSED_UNLESS: dict[str, Callable[[object], bool]] = {
    "n": lambda value: value in (None, 1),
    "best_of": lambda value: value in (None, 1),
    "echo": _is_empty,
    "logprobs": lambda value: value in (None, False),
    "top_logprobs": _is_zero,
    "logit_bias": _is_empty,
    "presence_penalty": _is_zero,
    "frequency_penalty": _is_zero,
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


@dataclass(frozen=True, slots=True)
class ApiRequest:
    generate: GenerateRequest
    chat: bool
    stream: bool
    include_usage: bool
    created: int
    """Seconds since 1970, as every object of the answer repeats it."""

    @property
    def id(self) -> str:
        return ("chatcmpl-" if self.chat else "cmpl-") + self.generate.id


def read_body(request: HttpRequest) -> Mapping[str, Any]:
    """The JSON object in a request. Raises ApiError.

    Only application/json is taken: a foreign web page cannot send that without asking first.
    """
    if request.content_type != "application/json":
        raise ApiError(415, f"Content-Type is '{request.content_type}'; it must be application/json")
    _check_size(int(request.META.get("CONTENT_LENGTH") or 0))
    try:
        body = request.body
        _check_size(len(body))  # a chunked body announces no length
        data = json.loads(body)
    except (RawPostDataException, UnreadablePostError) as error:
        raise ApiError(400, f"The body could not be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(400, f"The body is a {kind_of(data)}; it must be an object")
    return data


def _check_size(length: int) -> None:
    if length > BODY_BYTES:
        message = f"The body has {length:,} bytes; at most {BODY_BYTES:,} are taken"
        raise ApiError(413, message, code="request_too_large")


def parse_completion(data: Mapping[str, Any]) -> ApiRequest:
    """A request to /v1/completions. Raises ApiError."""
    return _parse(data, chat=False)


def parse_chat(data: Mapping[str, Any]) -> ApiRequest:
    """A request to /v1/chat/completions. Raises ApiError."""
    return _parse(data, chat=True)


def _parse(data: Mapping[str, Any], *, chat: bool) -> ApiRequest:
    try:
        _check_supported(data, chat=chat)
        generate = GenerateRequest(
            id=new_generation_id(),
            prompt=_chat_prompt(data) if chat else _text_prompt(data),
            model=_model(data),
            max_tokens=_max_tokens(data, chat=chat),
            sampling=sampling_of(data, SAMPLING),
            stop=stop_of(data.get("stop")),
        )
        stream = _flag(data, "stream")
        usage = _include_usage(data, stream=stream)
    except Invalid as error:
        raise _api_error(error) from error
    return ApiRequest(generate, chat, stream, usage, int(time.time()))


def _api_error(error: Invalid) -> ApiError:
    status = 413 if error.code == "too_long" else 400
    code = {"bad_request": None, "too_long": "request_too_large"}.get(error.code, error.code)
    return ApiError(status, error.message, param=error.param or None, code=code)


def _check_supported(data: Mapping[str, Any], *, chat: bool) -> None:
    known = _OBEYED | _IGNORED | set(_REFUSED_UNLESS) | _COMPLETION_ONLY | _CHAT_ONLY
    known -= _COMPLETION_ONLY if chat else _CHAT_ONLY
    for name, value in data.items():
        if name not in known:
            raise Invalid(f"Unrecognized request argument supplied: {shown(name)}", name, "unknown_parameter")
        asks_nothing = _REFUSED_UNLESS.get(name)
        if asks_nothing is not None and not asks_nothing(value):
            raise Invalid(
                f"{name} is {shown(value)}, which this server does not support: leave it out",
                name,
                "unsupported_parameter",
            )


def _model(data: Mapping[str, Any]) -> str:
    model = text_of(data, "model")
    if not model:
        raise Invalid("you must provide a model parameter; GET /v1/models lists them", "model")
    return model


def _text_prompt(data: Mapping[str, Any]) -> Prompt:
    prompt = data.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise Invalid(
            f"prompt is a {kind_of(prompt)}; it must be one string (several, or token ids, are not taken)",
            "prompt",
        )
    text = text_of({"prompt": prompt}, "prompt")
    suffix = text_of(data, "suffix") or None
    check_prompt_size(text, suffix)
    return Prompt(text=text, suffix=suffix)


def _chat_prompt(data: Mapping[str, Any]) -> Prompt:
    messages = messages_of(data.get("messages"))
    check_prompt_size(*(message.content for message in messages))
    return Prompt(messages=messages)


def _max_tokens(data: Mapping[str, Any], *, chat: bool) -> int:
    """For chat, where nothing is said, as much as may be: the worker ends at its context's end."""
    name = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    found = whole_of(data, name, 1, LIMITS.max_tokens)
    return found or (LIMITS.max_tokens if chat else COMPLETION_TOKENS)


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if value not in (None, True, False):
        raise Invalid(f"{name} is {shown(value)}; it must be true or false", name)
    return bool(value)


def _include_usage(data: Mapping[str, Any], *, stream: bool) -> bool:
    options = data.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise Invalid("stream_options goes with stream: true only", "stream_options")
    if not isinstance(options, dict):
        raise Invalid(f"stream_options is a {kind_of(options)}; it must be an object", "stream_options")
    unknown = next((name for name in options if name not in ("include_usage", "include_obfuscation")), None)
    if unknown is not None:
        name = f"stream_options.{unknown}"
        raise Invalid(f"Unrecognized request argument supplied: {name}", name, "unknown_parameter")
    return _flag(options, "include_usage")

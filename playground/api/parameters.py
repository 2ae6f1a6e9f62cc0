"""What a request to the API holds: generations to submit, and how to answer."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from django.http import HttpRequest
from django.http.request import RawPostDataException, UnreadablePostError
from msgspec import structs

from engine import replies
from engine.models.prompt import Prompt
from engine.serving.messages import MAX_LOGPROBS, GenerateRequest
from playground.api.errors import ApiError, api_error
from playground.api.support import check_supported, unsupported_error
from playground.limits import API_SAMPLING, BODY_BYTES, LIMITS
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
SEEDS = 2**64


@dataclass(frozen=True, slots=True)
class UsageWanted:
    """What `stream_options` ask for."""

    at_the_end: bool = False
    on_every_chunk: bool = False
    """vLLM's `continuous_usage_stats`."""


@dataclass(frozen=True, slots=True)
class ApiRequest:
    choices: tuple[GenerateRequest, ...]
    """One generation for each choice of the answer: `n` for each prompt, prompt after prompt."""
    n: int
    chat: bool
    stream: bool
    usage: UsageWanted
    created: int
    """Seconds since 1970, as every object of the answer repeats it."""

    @property
    def id(self) -> str:
        return ("chatcmpl-" if self.chat else "cmpl-") + self.choices[0].id

    @property
    def model(self) -> str:
        return self.choices[0].model


def read_body(request: HttpRequest) -> Mapping[str, Any]:
    """The JSON object in a request. Raises ApiError.

    Only application/json is taken: a foreign web page cannot send that without asking first.
    """
    if request.content_type != "application/json":
        raise ApiError(
            replies.BAD_MEDIA_TYPE, f"Content-Type is '{request.content_type}'; it must be application/json"
        )
    _check_size(_content_length(request))
    try:
        body = request.body
        _check_size(len(body))  # a chunked body announces no length
        data = json.loads(body)
    except (RawPostDataException, UnreadablePostError) as error:
        raise ApiError(replies.INVALID, f"The body could not be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise ApiError(replies.INVALID, f"The body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise ApiError(replies.INVALID, f"The body is {kind_of(data)}; it must be an object")
    return data


def _content_length(request: HttpRequest) -> int:
    """The length that the request says its body has; 0 where it says nothing."""
    length = request.headers.get("Content-Length") or "0"
    if not (length.isascii() and length.isdecimal()):
        raise ApiError(replies.INVALID, f"Content-Length is {shown(length)}; it must be a number of bytes")
    return int(length)


def _check_size(length: int) -> None:
    if length > BODY_BYTES:
        message = f"The body has {length:,} bytes; at most {BODY_BYTES:,} are taken"
        raise ApiError(replies.TOO_LARGE, message)


def parse_completion(data: Mapping[str, Any]) -> ApiRequest:
    """A request to /v1/completions. Raises ApiError."""
    return _parse(data, chat=False)


def parse_chat(data: Mapping[str, Any]) -> ApiRequest:
    """A request to /v1/chat/completions. Raises ApiError."""
    return _parse(data, chat=True)


def _parse(data: Mapping[str, Any], *, chat: bool) -> ApiRequest:
    try:
        check_supported(data, chat=chat)
        prompts = [chat_prompt(data)] if chat else _text_prompts(data)
        first = GenerateRequest(
            id="",
            prompt=prompts[0],
            model=model_of(data),
            max_tokens=_max_tokens(data, chat=chat),
            sampling=sampling_of(data, API_SAMPLING),
            stop=stop_of(data.get("stop")),
            ignore_eos=flag_of(data, "ignore_eos"),
            logprobs=_chat_logprobs(data) if chat else whole_of(data, "logprobs", 0, MAX_LOGPROBS),
        )
        n = _count(data, len(prompts))
        stream = flag_of(data, "stream")
        usage = _usage_wanted(data, stream=stream)
    except Invalid as error:
        raise api_error(error) from error
    return ApiRequest(_choices(first, prompts, n), n, chat, stream, usage, int(time.time()))


def _choices(first: GenerateRequest, prompts: list[Prompt], n: int) -> tuple[GenerateRequest, ...]:
    """Choice i of a prompt draws with the seed + i, so that the first is what one choice would have been."""
    seeds = ((first.sampling.seed + i) % SEEDS for i in range(1, n))
    samplings = [first.sampling, *(replace(first.sampling, seed=seed) for seed in seeds)]
    return tuple(
        structs.replace(first, id=new_generation_id(), prompt=prompt, sampling=sampling)
        for prompt in prompts
        for sampling in samplings
    )


def _count(data: Mapping[str, Any], prompts: int) -> int:
    """How many choices each prompt gets."""
    n = whole_of(data, "n", 1, LIMITS.choices) or 1
    if prompts * n > LIMITS.choices:
        raise Invalid(
            f"n is {n} for each of {prompts} prompts; at most {LIMITS.choices} choices are given in all", "n"
        )
    best_of = data.get("best_of")
    if best_of not in (None, n):
        raise unsupported_error("best_of", best_of)
    return n


def model_of(data: Mapping[str, Any]) -> str:
    model = text_of(data, "model")
    if not model:
        raise Invalid("you must provide a model parameter; GET /v1/models lists them", "model")
    return model


def _text_prompts(data: Mapping[str, Any]) -> list[Prompt]:
    given = data.get("prompt")
    if given == []:
        raise Invalid("prompt is an empty array; it must hold a string or token ids", "prompt")
    texts: list[object] = given if isinstance(given, list) and not _are_tokens(given) else [given]
    if len(texts) > LIMITS.choices:
        raise Invalid(f"prompt holds {len(texts)} texts; at most {LIMITS.choices} are taken", "prompt")
    prompts = [text_prompt(text, data) for text in texts]
    check_prompt_size(*(part for prompt in prompts for part in (prompt.text, prompt.suffix)))
    return prompts


def text_prompt(given: object, data: Mapping[str, Any]) -> Prompt:
    """A text, with the suffix that `data` may have, or token ids."""
    suffix = text_of(data, "suffix") or None
    if _are_tokens(given):
        return _token_prompt(cast("list[object]", given), suffix)
    if not isinstance(given, str):
        raise Invalid(
            f"prompt is {kind_of(given)}; it must be a string, an array of token ids, or an array of those",
            "prompt",
        )
    return Prompt(text=text_of({"prompt": given}, "prompt"), suffix=suffix)


def _are_tokens(given: object) -> bool:
    return isinstance(given, list) and bool(given) and isinstance(given[0], int | float)


def _token_prompt(given: list[object], suffix: str | None) -> Prompt:
    if suffix is not None:
        raise Invalid("a suffix goes with a text prompt, not with token ids", "suffix")
    if len(given) > LIMITS.prompt_bytes:
        raise Invalid(
            f"prompt has {len(given):,} tokens; at most {LIMITS.prompt_bytes:,} are taken", "prompt"
        )
    ids = [whole_of({"prompt": token}, "prompt", 0, 2**31 - 1) for token in given]
    if None in ids:
        raise Invalid("prompt holds null among its token ids", "prompt")
    return Prompt(tokens=tuple(cast("list[int]", ids)))


def chat_prompt(data: Mapping[str, Any]) -> Prompt:
    messages = messages_of(data.get("messages"))
    check_prompt_size(*(message.content for message in messages))
    return Prompt(messages=messages)


def _chat_logprobs(data: Mapping[str, Any]) -> int | None:
    """How many alternatives to each token the answer shows; None where it shows no scores."""
    wanted = flag_of(data, "logprobs")
    top = whole_of(data, "top_logprobs", 0, MAX_LOGPROBS)
    if top is not None and not wanted:
        raise Invalid("top_logprobs goes with logprobs: true only", "top_logprobs")
    return (top or 0) if wanted else None


def _max_tokens(data: Mapping[str, Any], *, chat: bool) -> int:
    """For chat, where nothing is said, as much as may be: the worker ends at its context's end."""
    name = "max_completion_tokens" if data.get("max_completion_tokens") is not None else "max_tokens"
    found = whole_of(data, name, 1, LIMITS.max_tokens)
    return found or (LIMITS.max_tokens if chat else COMPLETION_TOKENS)


def flag_of(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if value not in (None, True, False):
        raise Invalid(f"{name} is {shown(value)}; it must be true or false", name)
    return bool(value)


_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def _usage_wanted(data: Mapping[str, Any], *, stream: bool) -> UsageWanted:
    options = data.get("stream_options")
    if options is None:
        return UsageWanted()
    if not stream:
        raise Invalid("stream_options goes with stream: true only", "stream_options")
    if not isinstance(options, dict):
        raise Invalid(f"stream_options is {kind_of(options)}; it must be an object", "stream_options")
    unknown = next((name for name in options if name not in _STREAM_OPTIONS), None)
    if unknown is not None:
        name = f"stream_options.{unknown}"
        raise Invalid(f"Unrecognized request argument supplied: {name}", name, replies.UNKNOWN_PARAMETER)
    return UsageWanted(flag_of(options, "include_usage"), flag_of(options, "continuous_usage_stats"))

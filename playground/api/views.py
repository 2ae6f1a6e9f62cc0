"""The API's endpoints. Shapes and limits are the OpenAI API's, so that its clients work unchanged."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec

import msgspec
from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from engine import replies
from playground.addressing import models_of
from playground.admission import Caller
from playground.api import access, shapes
from playground.api.admission import first_seen, live_workers, submit, workers_with
from playground.api.errors import ApiError
from playground.api.generation import events, outcome
from playground.api.parameters import ApiRequest, parse_chat, parse_completion, read_body
from playground.api.tokenize import parse_tokenize, tokenize_reply

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, Caller, P], Coroutine[Any, Any, HttpResponseBase]]
Answer = Callable[Concatenate[HttpRequest, P], Coroutine[Any, Any, HttpResponseBase]]


def endpoint(method: str = "") -> Callable[[View[P]], Answer[P]]:
    """Answers one HTTP method (or any), lets in who may come, and writes every ApiError as clients read it.

    No cookie counts here, so neither does a CSRF token; `read_body` says why that is safe.
    """

    def decorate(view: View[P]) -> Answer[P]:
        @csrf_exempt
        @functools.wraps(view)
        async def answer(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                caller = await access.caller(request)
                if method and request.method != method:
                    message = f"{request.method} is not allowed here; use {method}"
                    raise ApiError(replies.BAD_METHOD, message, headers={"Allow": method})
                return await view(request, caller, *args, **kwargs)
            except ApiError as error:
                return error.response()

        return answer  # type: ignore[return-value]  # functools.wraps gives `request` a name

    return decorate


@endpoint("GET")
async def models(_request: HttpRequest, _caller: Caller) -> JsonResponse:
    workers = await live_workers()
    names = models_of(workers)
    seen = await first_seen(names)
    data = [shapes.model_object(name, workers, seen[name]) for name in names]
    return JsonResponse({"object": "list", "data": data})


@endpoint("GET")
async def model(_request: HttpRequest, _caller: Caller, name: str) -> JsonResponse:
    workers = workers_with(name, await live_workers())
    seen = await first_seen([name])
    return JsonResponse(shapes.model_object(name, workers, seen[name]))


@endpoint("POST")
async def completions(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    return await _answer(parse_completion(read_body(request)), caller)


@endpoint("POST")
async def chat_completions(request: HttpRequest, caller: Caller) -> HttpResponseBase:
    return await _answer(parse_chat(read_body(request)), caller)


@endpoint("POST")
async def tokenize(request: HttpRequest, caller: Caller) -> JsonResponse:
    answer, headers = await tokenize_reply(parse_tokenize(read_body(request)), caller)
    return JsonResponse(answer, headers=headers)


@endpoint()
async def not_found(request: HttpRequest, _caller: Caller, unknown: str) -> JsonResponse:
    raise ApiError(replies.UNKNOWN_URL, f"Unknown request URL: {request.method} /v1/{unknown}")


async def _answer(asked: ApiRequest, caller: Caller) -> HttpResponseBase:
    request, headers = await submit(asked, caller)
    headers["x-request-id"] = request.id
    if not request.stream:
        answer = msgspec.json.encode(await outcome(request))
        return HttpResponse(answer, content_type="application/json", headers=headers)
    stream = events(request)
    first = await anext(stream)
    headers["Cache-Control"] = "no-cache"
    headers["X-Accel-Buffering"] = "no"  # nginx would collect the events
    return StreamingHttpResponse(_from(first, stream), content_type="text/event-stream", headers=headers)


async def _from(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event

"""The API's endpoints. Shapes and limits are the OpenAI API's, so that its clients work unchanged."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Concatenate, ParamSpec

from django.http import HttpRequest, JsonResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt

from playground.api import shapes
from playground.api.errors import ApiError, model_not_found
from playground.api.generation import events, live_workers, outcome, submit
from playground.api.parameters import ApiRequest, parse_chat, parse_completion, read_body

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, P], Coroutine[Any, Any, HttpResponseBase]]


def endpoint(method: str) -> Callable[[View[P]], View[P]]:
    """Answers one HTTP method and writes every ApiError the way clients read it.

    No cookie counts here, so neither does a CSRF token; `read_body` says why that is safe.
    """

    def decorate(view: View[P]) -> View[P]:
        @csrf_exempt
        @functools.wraps(view)
        async def answer(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
            try:
                if request.method != method:
                    raise ApiError(405, f"{request.method} is not allowed here; use {method}")
                return await view(request, *args, **kwargs)
            except ApiError as error:
                return error.response()

        return answer  # type: ignore[return-value]  # functools.wraps gives `request` a name

    return decorate


@endpoint("GET")
async def models(_request: HttpRequest) -> JsonResponse:
    workers = await live_workers()
    names = sorted({worker.model for worker in workers})
    data = [shapes.model_object(name, workers, int(time.time())) for name in names]
    return JsonResponse({"object": "list", "data": data})


@endpoint("GET")
async def model(_request: HttpRequest, name: str) -> JsonResponse:
    workers = await live_workers()
    names = sorted({worker.model for worker in workers})
    if name not in names:
        raise model_not_found(name, names)
    return JsonResponse(shapes.model_object(name, workers, int(time.time())))


@endpoint("POST")
async def completions(request: HttpRequest) -> HttpResponseBase:
    return await _answer(parse_completion(read_body(request)))


@endpoint("POST")
async def chat_completions(request: HttpRequest) -> HttpResponseBase:
    return await _answer(parse_chat(read_body(request)))


async def unknown(request: HttpRequest, unknown: str) -> JsonResponse:
    return ApiError(
        404, f"Unknown request URL: {request.method} /v1/{unknown}", code="unknown_url"
    ).response()


async def _answer(request: ApiRequest) -> HttpResponseBase:
    await submit(request)
    if not request.stream:
        return JsonResponse(await outcome(request))
    stream = events(request)
    first = await anext(stream)
    response = StreamingHttpResponse(_from(first, stream), content_type="text/event-stream")
    response["Cache-Control"] = "no-cache"
    response["X-Accel-Buffering"] = "no"  # nginx would collect the events
    return response


async def _from(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    async with aclosing(rest):
        yield first
        async for event in rest:
            yield event

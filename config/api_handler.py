"""Django's handler for /v1: the same views, without what only pages need.

An API takes no cookie and shows no form. Of sessions, users, CSRF tokens and messages it has nothing, and in
an async server each such middleware costs a request one or two turns of a thread. What guards every answer is
kept, and runs in the event loop: it computes headers and waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import lru_cache, partial
from typing import Any, cast

from asgiref.sync import SyncToAsync, sync_to_async
from csp.middleware import CSPMiddleware
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.exception import convert_exception_to_response
from django.core.signals import request_finished
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.middleware.clickjacking import XFrameOptionsMiddleware
from django.middleware.common import CommonMiddleware
from django.middleware.security import SecurityMiddleware
from django.urls import ResolverMatch, URLResolver, get_resolver, set_script_prefix

from config.headers import protective_headers
from engine.serving import cancellation

PREFIX = "/v1/"
Handle = Callable[[HttpRequest], Awaitable[HttpResponseBase]]


class ApiHandler(ASGIHandler):
    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        """As Django's, without the signal that a request begins: its receivers cost a thread's turn.

        They look at the database's connections, which end with the request here (`response.close`).
        """
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        with closing(body):
            set_script_prefix(get_script_prefix(scope))
            request, refused = self.create_request(scope, body)
            answering = asyncio.create_task(self._answer(request, refused, send))
            leaving = asyncio.create_task(receive())  # nothing else can come after the body
            try:
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await cancellation.end(leaving)
                if not answering.done():
                    await cancellation.end(answering)
            if not answering.cancelled():
                answering.result()

    def resolve_request(self, request: Any) -> ResolverMatch:
        """As Django's, which goes through the patterns for each request: the API has few paths."""
        found = request.resolver_match = _match(get_resolver(), request.path_info)
        return found

    async def _answer(self, request: Any, refused: HttpResponseBase | None, send: Any) -> None:
        try:
            response = refused or await self.run_get_response(request)
        except asyncio.CancelledError:
            await _end(partial(request_finished.send, sender=self.__class__))
            raise
        try:
            await self.send_response(response, send)
        finally:
            await _end(response.close)

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: ARG002  it always is
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        view: Any = convert_exception_to_response(
            self._get_response_async  # type: ignore[attr-defined]  # the stubs lack it
        )
        handle = _in_loop(CommonMiddleware, _in_loop(XFrameOptionsMiddleware, view))
        self._middleware_chain = _in_loop(
            SecurityMiddleware, _with_headers(_content_policy(), protective_headers(handle))
        )


@lru_cache(maxsize=16)
def _match(resolver: URLResolver, path: str) -> ResolverMatch:
    return resolver.resolve(path)


async def _end(end: Callable[[], object]) -> None:
    """Has `end` close the request's connections to the database where they were opened."""
    if _has_used_a_thread():
        await sync_to_async(end)()
    else:
        end()


def _has_used_a_thread() -> bool:
    """Whether this request has had a thread's turn, as for a query; the first one starts a thread for it."""
    request = SyncToAsync.thread_sensitive_context.get(None)
    return request is None or request in SyncToAsync.context_to_thread_executor


def _content_policy() -> dict[str, str]:
    """The headers of the policy for content: an answer of the API shows none, so they are always the same."""
    answer = HttpResponse()
    middleware = CSPMiddleware(lambda _request: answer)
    before = dict(answer.items())
    request = HttpRequest()
    middleware.process_request(request)
    middleware.process_response(request, answer)
    return dict(answer.items() - before.items())


def _with_headers(headers: Mapping[str, str], handle: Handle) -> Handle:
    async def answer(request: HttpRequest) -> HttpResponseBase:
        response = await handle(request)
        for name, value in headers.items():
            response.headers.setdefault(name, value)
        return response

    return answer


def _in_loop(kind: Callable[[Any], Any], handle: Handle) -> Handle:
    """`kind` around `handle`. Django's own way would hand each of its two steps to a thread."""
    middleware = kind(handle)
    before = getattr(middleware, "process_request", None)
    after = middleware.process_response

    async def answer(request: HttpRequest) -> HttpResponseBase:
        response = before(request) if before else None
        return cast("HttpResponseBase", after(request, response or await handle(request)))

    return cast("Handle", convert_exception_to_response(answer))

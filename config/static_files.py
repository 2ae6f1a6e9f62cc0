"""WhiteNoise for an async server.

WhiteNoise's own middleware is synchronous: Django would then run every request, streams included, through
a thread and could not pass a client's disconnect on to the view.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, cast

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware

CHUNK = re.compile(r"/chunks/[\w-]+-[0-9A-Z]{8}\.js$")
"""As static/build.js names what a page loads on demand."""


class AsyncWhiteNoiseMiddleware(WhiteNoiseMiddleware):  # type: ignore[misc]  # WhiteNoise has no types
    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]]) -> None:
        super().__init__(get_response)
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def immutable_file_test(self, path: str, url: str) -> bool:
        """Whether a file never changes under its name: Django's hash is in it, or the bundler's."""
        return CHUNK.search(url) is not None or bool(super().immutable_file_test(path, url))

    async def __call__(self, request: HttpRequest) -> HttpResponseBase:
        path = request.path_info
        found = self.find_file(path) if self.autorefresh else self.files.get(path)
        if found is None:
            return cast("HttpResponseBase", await self.get_response(request))
        return await sync_to_async(_read, thread_sensitive=False)(found, request)


def _read(static_file: Any, request: HttpRequest) -> HttpResponse:
    """The whole file at once: handed out piecewise it would need a thread a piece, and the largest is
    Pyodide's program of 3.5 MB compressed, which a browser fetches once.
    """
    answer = static_file.get_response(request.method, request.META)
    content = b""
    if answer.file is not None:
        with answer.file as file:
            content = file.read()
    response = HttpResponse(content, status=int(answer.status), content_type="")
    del response["Content-Type"]
    for name, value in answer.headers:
        response[name] = value
    return response

"""Static files through the async middleware."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from django.contrib.staticfiles.storage import staticfiles_storage
from django.core.management import call_command
from django.http import HttpRequest, HttpResponse

from config.static_files import AsyncWhiteNoiseMiddleware


async def view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("from the view")


@pytest.fixture
def middleware(settings, tmp_path: Path) -> AsyncWhiteNoiseMiddleware:
    """Over files that `collectstatic` has hashed and compressed."""
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "app.js").write_text("let x = 1\n" * 500)
    settings.STATICFILES_DIRS = [sources]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    settings.STATIC_ROOT = tmp_path / "collected"
    (sources / "chunks").mkdir()
    (sources / "chunks" / "rust-0ABCDEF1.js").write_text("export {}")
    call_command("collectstatic", interactive=False, verbosity=0)
    return AsyncWhiteNoiseMiddleware(view)


@pytest.fixture
def hashed(middleware) -> str:
    url: str = staticfiles_storage.url("app.js")
    assert url != "/static/app.js"
    return url


def request(path: str, method: str = "GET", **meta: str) -> HttpRequest:
    found = HttpRequest()
    found.method, found.path_info, found.META = method, path, {"REQUEST_METHOD": method, **meta}
    return found


async def test_a_hashed_file_is_served_for_ever(middleware, hashed):
    response = await middleware(request(hashed))
    assert response.content == b"let x = 1\n" * 500
    assert "immutable" in response["Cache-Control"]
    assert response["Content-Type"].startswith("text/javascript")
    assert "Access-Control-Allow-Origin" not in response


async def test_a_chunk_is_served_for_ever_by_the_name_that_the_bundler_gave_it(middleware):
    response = await middleware(request("/static/chunks/rust-0ABCDEF1.js"))
    assert "immutable" in response["Cache-Control"]
    unhashed = await middleware(request("/static/app.js"))
    assert "immutable" not in unhashed["Cache-Control"]


async def test_a_compressed_form_is_sent_to_whoever_takes_it(middleware, hashed):
    response = await middleware(request(hashed, HTTP_ACCEPT_ENCODING="gzip"))
    assert response["Content-Encoding"] == "gzip"
    assert gzip.decompress(response.content) == b"let x = 1\n" * 500


async def test_a_known_file_is_not_sent_again(middleware, hashed):
    first = await middleware(request(hashed))
    again = await middleware(request(hashed, HTTP_IF_MODIFIED_SINCE=first["Last-Modified"]))
    assert (again.status_code, again.content) == (304, b"")


async def test_everything_else_goes_on_to_the_view(middleware):
    for path in ("/", "/static/", "/static/../secret_key", "/static/missing.js"):
        assert (await middleware(request(path))).content == b"from the view"


async def test_head_sends_no_body(middleware, hashed):
    assert (await middleware(request(hashed, "HEAD"))).content == b""

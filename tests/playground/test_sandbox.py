"""The frame in which programs run: what its own headers forbid, and that the page may show it."""

from __future__ import annotations

import re

import pytest

pytestmark = pytest.mark.django_db(transaction=True)


async def policy_of(async_client, path: str) -> dict[str, str]:
    response = await async_client.get(path)
    parts = response["Content-Security-Policy"].split("; ")
    return {name: rest for name, _, rest in (part.partition(" ") for part in parts)}


async def test_the_frame_has_an_opaque_origin_and_may_connect_nowhere(async_client):
    policy = await policy_of(async_client, "/sandbox/")
    assert policy["sandbox"] == "allow-scripts"
    assert policy["default-src"] == "'none'"
    assert "connect-src" not in policy
    assert policy["worker-src"] == "blob:"
    assert re.fullmatch(r"'nonce-[\w+/=]+' 'wasm-unsafe-eval'", policy["script-src"])


async def test_only_pages_of_this_site_may_show_the_frame(async_client):
    response = await async_client.get("/sandbox/")
    assert "frame-ancestors 'self'" in response["Content-Security-Policy"]
    assert response["X-Frame-Options"] == "SAMEORIGIN"


async def test_the_frame_is_never_cached_for_its_nonce_is_used_once(async_client):
    assert "no-store" in (await async_client.get("/sandbox/"))["Cache-Control"]


async def test_the_page_itself_gains_only_the_right_to_hold_the_frame(async_client):
    policy = await policy_of(async_client, "/")
    assert policy["frame-src"] == "'self'"
    assert "wasm-unsafe-eval" not in policy["script-src"]
    assert "worker-src" not in policy


async def test_the_page_names_the_files_that_its_first_run_fetches(async_client):
    page = (await async_client.get("/")).content.decode()
    for file in ("run/worker.js", "run/pyodide.asm.wasm", "run/python_stdlib.zip"):
        assert f'="/static/{file}"' in page

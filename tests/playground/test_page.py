"""The page itself: what it is given, and what guards it."""

from __future__ import annotations

import gzip
import json
import re

import pytest
from django.contrib.sessions.models import Session

from engine.sampling import OPTIONS
from playground.examples import EXAMPLES
from playground.limits import DEFAULTS, LIMITS, SAMPLING_OPTIONS

pytestmark = pytest.mark.django_db(transaction=True)


def data_in(page: str, name: str) -> object:
    [found] = re.findall(rf'<script id="{name}" type="application/json">(.*?)</script>', page, re.S)
    return json.loads(found)


async def test_the_page_holds_examples_and_limits_as_data(async_client):
    page = (await async_client.get("/")).content.decode()
    assert data_in(page, "examples") == [dict(example) for example in EXAMPLES]
    assert data_in(page, "limits")["prompt_bytes"] == LIMITS.prompt_bytes


async def test_the_page_has_a_field_for_every_sampling_option_and_their_table_as_data(async_client):
    page = (await async_client.get("/")).content.decode()
    fields = re.findall(r'<input type="number" id="(\w+)"', page)
    assert set(fields) == {"max_tokens", "answer_tokens", *(option.name for option in OPTIONS)}
    assert data_in(page, "sampling-options") == SAMPLING_OPTIONS


async def test_the_fields_offer_the_defaults_within_their_ranges(async_client):
    page = (await async_client.get("/")).content.decode()
    for option in (option for option in OPTIONS if option.form):
        value = DEFAULTS["sampling"][option.name]
        assert option.low <= option.form.low <= value <= option.form.high <= option.high
        [shown] = re.findall(rf'id="{option.name}" name="{option.name}" .* value="([^"]*)"', page)
        assert float(shown) == value


async def test_a_visit_gives_the_browser_a_session_that_owns_what_it_starts(async_client):
    await async_client.get("/")
    owner = (await Session.objects.aget()).get_decoded()["playground_owner"]
    assert re.fullmatch("[0-9a-f]{32}", owner)
    await async_client.get("/")
    assert (await Session.objects.aget()).get_decoded()["playground_owner"] == owner


@pytest.mark.parametrize("path", ["/", "/race/"])
async def test_the_page_travels_compressed_and_repeats_nothing_of_the_request(async_client, path):
    """The second is why the first gives nothing away: BREACH needs a guess beside the secret."""
    response = await async_client.get(
        f"{path}?guess=xyzzy-1", headers={"Accept-Encoding": "gzip", "User-Agent": "xyzzy-2"}
    )
    assert response["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in response["Vary"]
    page = gzip.decompress(response.content)
    assert b"csrfmiddlewaretoken" in page
    assert b"xyzzy" not in page
    assert len(response.content) < len(page) / 2


async def test_headers_forbid_what_the_page_does_not_need(async_client):
    response = await async_client.get("/")
    policy = response["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe-inline" not in policy
    assert "unsafe-eval" not in policy
    assert "frame-ancestors 'none'" in policy
    assert response["X-Frame-Options"] == "DENY"
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Referrer-Policy"] == "same-origin"
    cookie = response.cookies["sessionid"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


async def test_every_nonce_is_new_and_allowed_by_the_policy(async_client):
    seen = set()
    for _ in range(2):
        response = await async_client.get("/")
        for nonce in set(re.findall(r'nonce="([^"]+)"', response.content.decode())):
            assert f"'nonce-{nonce}'" in response["Content-Security-Policy"]
            seen.add(nonce)
    assert len(seen) == 2


async def test_an_unknown_host_is_refused(async_client):
    response = await async_client.get("/", headers={"host": "evil.example"})
    assert response.status_code == 400


async def test_posting_to_the_page_is_not_allowed(async_client):
    assert (await async_client.post("/")).status_code == 405

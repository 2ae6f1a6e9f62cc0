"""Shared pages: opt-in, for those with the address, and taken down by whoever put them up."""

from __future__ import annotations

import io
import re
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as project_settings
from django.test import AsyncClient
from django.utils import timezone
from PIL import Image

from playground import sharing
from playground.models import Generation, Lane, Share
from playground.pace_drawing import pace_path

pytestmark = pytest.mark.django_db(transaction=True)
needs_fonts = pytest.mark.skipif(
    not (project_settings.BASE_DIR / "static/dist/fonts").is_dir(), reason="the front end is not built"
)
REQUEST = {
    "prompt": {"text": "def f(<b>x</b>):", "suffix": None, "messages": []},
    "max_tokens": 64,
    "stop": [],
    "sampling": {
        "temperature": 0.2, "top_p": 0.95, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "seed": 7,
    },
}  # fmt: skip
TIMINGS = {
    "queue_ms": 1.0, "prefill_ms": 20.0, "ttft_ms": 25.0, "decode_ms": 630.0, "decode_tok_s": 100.0,
    "prompt_tokens": 5, "completion_tokens": 64,
}  # fmt: skip
ENVIRONMENT = {
    "backend": {"name": "cuda", "devices": ["NVIDIA H200"] * 8, "parallelism": "dtp", "sync": "mailbox"},
    "cpu": {"model": "AMD EPYC", "cores": 16},
    "gpus": [{"driver": "575.1", "uuid": "GPU-secret"}],
    "git": {"sha": "f" * 40, "dirty": True},
}


async def owner_of(client: Any) -> str:
    """The owner's name in the client's session; opens the page for it."""
    await client.get("/race/")
    return str(await (await client.asession()).aget("playground_owner"))


async def finished(owner: str, number: int = 1, **changes: Any) -> Generation:
    row = {
        "id": f"{number:032x}", "owner": owner, "state": "done", "request": REQUEST, "model": "tiny",
        "backend": "cuda", "text": "    return <i>x</i>", "timings": TIMINGS, "finish_reason": "length",
        "environment": ENVIRONMENT, "pace": {"stretch_us": 20_000, "counts": [2, 2, 1, 2]},
    }  # fmt: skip
    return await Generation.objects.acreate(**{**row, **changes})


async def shared(client: Any, *lanes: str) -> str:
    """Shares and returns the path of the page."""
    response = await client.post("/g/", {"lane": lanes}, headers={"accept": "application/json"})
    assert response.status_code == 201, response.content
    return str(response.json()["url"]).removeprefix("http://testserver")


async def test_nothing_is_shared_that_nobody_asked_to_share(async_client):
    row = await finished(await owner_of(async_client))
    assert (await async_client.get(f"/g/{row.id}/")).status_code == 404
    assert not await Share.objects.aexists()


async def test_a_shared_run_shows_its_text_settings_timings_and_environment(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    assert re.fullmatch(r"/g/[A-Za-z0-9_-]{22}/", path)
    page = (await AsyncClient().get(path)).content.decode()
    assert "def f(&lt;b&gt;x&lt;/b&gt;):" in page
    assert "return &lt;i&gt;x&lt;/i&gt;" in page
    assert "<b>" not in page
    for said in ("tiny on cuda", "8 × NVIDIA H200", "queue 1.0 ms",
        "reading the prompt 20 ms", "launch 4.0 ms",
                 "dtp", "575.1", "ffffffffffff with changes", "Seed", "655 ms"):  # fmt: skip
        assert said in page, said
    assert "GPU-secret" not in page
    assert "Revoke" not in page


async def test_a_shared_page_is_for_no_search_engine_and_no_cache(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    response = await async_client.get(path)
    assert response["X-Robots-Tag"] == "noindex, nofollow"
    assert response["Cache-Control"] == "private, no-store"
    page = response.content.decode()
    assert '<meta name="robots" content="noindex, nofollow">' in page
    assert f'<meta property="og:image" content="http://testserver{path}card.png">' in page


async def test_sharing_again_gives_the_same_page(async_client):
    row = await finished(await owner_of(async_client))
    assert await shared(async_client, row.id) == await shared(async_client, row.id)
    assert await Share.objects.acount() == 1


async def test_a_form_without_a_script_is_led_to_the_page(async_client):
    row = await finished(await owner_of(async_client))
    response = await async_client.post("/g/", {"lane": row.id})
    assert response.status_code == 302
    assert (await async_client.get(response["Location"])).status_code == 200


async def test_only_the_session_that_ran_it_can_share_it(async_client):
    row = await finished(await owner_of(async_client))
    other = AsyncClient()
    await owner_of(other)
    response = await other.post("/g/", {"lane": row.id}, headers={"accept": "application/json"})
    assert response.status_code == 400
    assert "of this browser session" in response.json()["error"]


async def test_rows_that_no_session_owns_cannot_be_shared_or_revoked(async_client):
    row = await finished("")
    page = await Share.objects.acreate(owner="")
    response = await async_client.post("/g/", {"lane": row.id})
    assert response.status_code == 400
    assert (await async_client.post(f"/g/{page.id}/revoke/")).status_code == 404


async def test_sharing_needs_the_csrf_token():
    client = AsyncClient(enforce_csrf_checks=True)
    row = await finished(await owner_of(client))
    assert (await client.post("/g/", {"lane": row.id})).status_code == 403


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "words"),
    [
        ([], "0 lanes were named"),
        (["pacer:100"] * 4, "4 lanes were named"),
        (["pacer:100"], "at least one generation"),
        (["pacer:0"], "allowed are 1 to 100,000"),
        (["pacer:nan"], "allowed are 1 to 100,000"),
        (["../../etc"], "is no generation"),
        (["f" * 32], "of this browser session"),
        ([f"{1:032x}", f"{1:032x}"], "named twice"),
        ([f"{1:032x}", f"{2:032x}"], "different prompts"),
        ([f"{1:032x}", f"{3:032x}"], "not started together"),
        ([f"{4:032x}"], "has not ended"),
    ],
)
async def test_what_cannot_be_shared_is_refused_in_one_sentence(async_client, lanes, words):
    owner = await owner_of(async_client)
    await finished(owner, 1)
    await finished(owner, 2, request={**REQUEST, "prompt": {"text": "another", "messages": []}})
    await finished(owner, 3, created=timezone.now() - timedelta(seconds=30))
    await finished(owner, 4, state="running", timings={})
    response = await async_client.post("/g/", {"lane": lanes}, headers={"accept": "application/json"})
    assert response.status_code == 400
    assert words in response.json()["error"]
    assert not await Share.objects.aexists()


async def test_a_race_shows_each_contestant_in_its_place_and_calls_a_pacer_one(async_client):
    owner = await owner_of(async_client)
    slow = await finished(owner, 1)
    fast = await finished(
        owner, 2, model="quick", timings={**TIMINGS, "decode_ms": 63.0, "decode_tok_s": 1000.0}
    )
    path = await shared(async_client, slow.id, fast.id, "pacer:50")
    page = (await async_client.get(path)).content.decode()
    places = re.findall(r'<span class="place">(\d)\.</span> ([^<]+)<', page)
    assert places == [("1", "quick on cuda"), ("2", "tiny on cuda"), ("3", "Pacer at 50 tok/s")]
    assert "not an engine" in page
    assert "1.28 s" in page  # 64 tokens at 50 tok/s


@pytest.mark.slow
async def test_a_revoked_page_is_gone_with_its_picture_and_its_text_stays_its_owner_s(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    assert "Revoke" in (await async_client.get(path)).content.decode()
    assert (await async_client.post(f"{path}revoke/")).status_code == 302
    for gone in (path, f"{path}card.png", f"{path}0.txt"):
        assert (await async_client.get(gone)).status_code == 404
    assert await Generation.objects.filter(id=row.id).aexists()
    assert not await Lane.objects.aexists()


async def test_nobody_else_can_revoke_it(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    assert (await AsyncClient().post(f"{path}revoke/")).status_code == 404
    assert (await async_client.get(path)).status_code == 200


async def test_an_owner_sees_all_that_was_shared_and_nobody_else_s(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    assert path in (await async_client.get("/g/")).content.decode()
    assert path not in (await AsyncClient().get("/g/")).content.decode()


async def test_too_many_pages_in_an_hour_have_to_wait(async_client, monkeypatch):
    monkeypatch.setattr(sharing, "MOST_AN_HOUR", 1)
    owner = await owner_of(async_client)
    first, second = await finished(owner, 1), await finished(owner, 2)
    await shared(async_client, first.id)
    response = await async_client.post("/g/", {"lane": second.id}, headers={"accept": "application/json"})
    assert (response.status_code, response["Retry-After"]) == (429, "600")
    assert "wait a little" in response.json()["error"]


async def test_the_output_is_a_file_of_plain_text(async_client):
    row = await finished(await owner_of(async_client))
    path = await shared(async_client, row.id)
    response = await async_client.get(f"{path}0.txt")
    assert response.content.decode() == row.text
    assert response["Content-Type"] == "text/plain; charset=utf-8"
    assert response["Content-Disposition"].startswith("attachment")
    assert (await async_client.get(f"{path}1.txt")).status_code == 404


async def test_a_generation_of_which_nothing_is_known_but_its_text_can_be_shown(async_client):
    empty = {**TIMINGS, "decode_ms": 0.0, "decode_tok_s": 0.0, "completion_tokens": 1}
    row = await finished(await owner_of(async_client), environment={}, pace={}, timings=empty)
    page = (await async_client.get(await shared(async_client, row.id))).content.decode()
    assert "gone before it could be asked" in page


@pytest.mark.slow
@needs_fonts
@pytest.mark.parametrize("lanes", [1, 2])
async def test_the_picture_has_the_size_of_previews_and_is_drawn_once(async_client, monkeypatch, lanes):
    owner = await owner_of(async_client)
    rows = [await finished(owner, number) for number in range(lanes)]
    path = await shared(async_client, *[row.id for row in rows])
    response = await async_client.get(f"{path}card.png")
    assert response["Content-Type"] == "image/png"
    assert Image.open(io.BytesIO(response.content)).size == (1200, 630)
    assert len(response.content) < 60_000
    monkeypatch.setattr("playground.sharing_views._draw", lambda _page: pytest.fail("drawn again"))
    assert (await async_client.get(f"{path}card.png")).content == response.content


@needs_fonts
async def test_a_picture_survives_what_a_prompt_may_hold(async_client):
    text = "\t你好 \u202e\U0001f600\x07" + "long" * 500 + "\n" * 50
    row = await finished(
        await owner_of(async_client),
        request={**REQUEST, "prompt": {"text": text, "messages": []}},
        model="m" * 200,
        timings={**TIMINGS, "decode_tok_s": 1e6},
    )
    path = await shared(async_client, row.id)
    assert (await async_client.get(f"{path}card.png")).status_code == 200


def test_strips_that_are_compared_share_their_scales_of_speed_and_of_time() -> None:
    slow = pace_path([50.0] * 12, stretch_ms=40.0, peak=100.0, span_ms=480.0)
    fast = pace_path([100.0] * 12, stretch_ms=20.0, peak=100.0, span_ms=480.0)
    assert "v-24.0" in slow
    assert "v-48.0" in fast
    last_dash = [path.rpartition("M")[2].split(" ")[0] for path in (slow, fast)]
    assert last_dash == ["440.0", "220.0"]  # of 480: as late as it came

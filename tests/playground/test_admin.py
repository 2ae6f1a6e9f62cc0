"""Generations in the admin."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from engine.timings import Timings
from playground.models import Generation, Lane, Share

pytestmark = pytest.mark.django_db


def test_generations_are_listed_and_shown_but_not_changed(admin_client):
    timings = asdict(Timings(1, 2, 3, 4, 2987.6, 5, 6))
    made = Generation.objects.create(
        id="c" * 32, owner="owner-name", request={}, state="done", text="print(1)", timings=timings
    )
    page = admin_client.get("/admin/playground/generation/").content.decode()
    assert "2,988" in page
    url = f"/admin/playground/generation/{made.id}/change/"
    shown = admin_client.get(url).content.decode()
    assert "print(1)" in shown
    assert "owner-name" not in shown
    assert admin_client.post(url, {"text": "changed"}).status_code == 403
    assert admin_client.get("/admin/playground/generation/add/").status_code == 403


def shared_run() -> Share:
    timings = asdict(Timings(1, 2, 3, 4, 2987.6, 5, 6))
    asked = {"prompt": {"text": "something vile"}, "max_tokens": 8, "sampling": {}}
    Generation.objects.create(
        id="d" * 32, owner="o" * 32, request=asked, state="done", text="worse", timings=timings
    )
    share = Share.objects.create(owner="o" * 32, card=b"png")
    Lane.objects.create(share=share, place=0, generation_id="d" * 32)
    return share


def test_a_shared_page_can_be_judged_and_taken_down(admin_client, client):
    share = shared_run()
    url = f"/admin/playground/share/{share.id}/"
    assert "something vile" in admin_client.get(f"{url}change/").content.decode()
    assert share.id in admin_client.get("/admin/playground/share/?q=worse").content.decode()
    assert admin_client.post(f"{url}delete/", {"post": "yes"}).status_code == 302
    assert client.get(f"/g/{share.id}/").status_code == 404
    assert client.get(f"/g/{share.id}/card.png").status_code == 404


def test_a_generation_that_a_page_shows_is_not_deleted_under_it(admin_client):
    share = shared_run()
    url = f"/admin/playground/generation/{'d' * 32}/delete/"
    admin_client.post(url, {"post": "yes"})
    assert Generation.objects.filter(id="d" * 32).exists()
    assert Share.objects.filter(id=share.id).exists()


@pytest.mark.parametrize("path", ["", "0.txt", "card.png"])
def test_a_page_with_nothing_left_to_show_is_gone(client, path):
    """As rows of before left them: its generation was deleted, the page was not."""
    share = Share.objects.create(owner="o" * 32, card=b"png")
    assert client.get(f"/g/{share.id}/{path}").status_code == 404


def rows_asked_for(captured: CaptureQueriesContext, kind: str) -> list[str]:
    return [q["sql"] for q in captured if q["sql"].startswith(f'SELECT "playground_{kind}"."')]


@pytest.mark.parametrize(
    ("kind", "long"), [("generation", ("request", "text", "environment", "pace")), ("share", ("card",))]
)
def test_a_list_does_not_read_what_is_long_in_its_rows(admin_client, kind, long):
    shared_run()
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(f"/admin/playground/{kind}/").status_code == 200
    rows = rows_asked_for(captured, kind)
    assert rows
    assert not [column for column in long for sql in rows if f'"playground_{kind}"."{column}"' in sql]


def test_a_generation_is_shown_with_one_question_for_its_row(admin_client):
    shared_run()
    with CaptureQueriesContext(connection) as captured:
        page = admin_client.get(f"/admin/playground/generation/{'d' * 32}/change/")
    assert "something vile" in page.content.decode()
    assert len(rows_asked_for(captured, "generation")) == 1


def test_a_shared_page_is_shown_with_one_question_for_its_lanes_and_none_of_what_it_does_not_show(
    admin_client,
):
    share = shared_run()
    with CaptureQueriesContext(connection) as captured:
        assert admin_client.get(f"/admin/playground/share/{share.id}/change/").status_code == 200
    assert len(rows_asked_for(captured, "share")) == len(rows_asked_for(captured, "lane")) == 1
    assert rows_asked_for(captured, "generation") == []
    [lanes] = rows_asked_for(captured, "lane")
    assert '"playground_generation"."text"' in lanes
    assert '"playground_generation"."environment"' not in lanes
    assert '"playground_generation"."pace"' not in lanes


def test_a_shared_race_is_judged_with_as_many_questions_as_a_run(admin_client):
    def count(share: Share) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(f"/admin/playground/share/{share.id}/change/").status_code == 200
        return len(captured)

    share = shared_run()
    run = count(share)
    for place, letter in ((1, "e"), (2, "f")):
        Generation.objects.create(id=letter * 32, owner="o" * 32, request={"prompt": {}}, state="done")
        Lane.objects.create(share=share, place=place, generation_id=letter * 32)
    assert count(share) == run

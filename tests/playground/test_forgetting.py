"""Nothing is kept for ever."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.utils import timezone
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import ModelEntry

from engine.serving.messages import Done
from playground import services, tasks
from playground.models import Generation, Lane, Share
from playground.transcript import Transcript
from tests.playground.conftest import done, tokens

pytestmark = pytest.mark.django_db


def generation(name: str, age: timedelta, state: str = "done") -> None:
    Generation.objects.create(id=name * 32, request={}, state=state, created=timezone.now() - age)


def test_generations_older_than_the_setting_are_deleted_whatever_became_of_them(settings):
    settings.GENERATION_DAYS = 7
    generation("a", timedelta(days=7, hours=1))
    generation("b", timedelta(days=8), state="running")
    generation("c", timedelta(days=6, hours=23))
    assert services.forget_old() == 2
    assert [row.id[0] for row in Generation.objects.all()] == ["c"]


def test_what_a_shared_page_shows_is_kept_as_long_as_the_page(settings):
    settings.GENERATION_DAYS, settings.SHARE_DAYS = 7, 30
    generation("a", timedelta(days=31))
    share = Share.objects.create(owner="o" * 32)
    Lane.objects.create(share=share, place=0, generation_id="a" * 32)
    assert services.forget_old() == 0
    Share.objects.update(created=timezone.now() - timedelta(days=30, hours=1))
    assert services.forget_old() == 1
    assert not Share.objects.exists()


def test_the_hourly_task_drops_old_generations_and_expired_sessions():
    generation("a", timedelta(days=400))
    for name, hours in (("old", -1), ("new", 1)):
        Session.objects.create(
            session_key=name, session_data="", expire_date=timezone.now() + timedelta(hours=hours)
        )
    tasks.forget()
    assert not Generation.objects.exists()
    assert [session.session_key for session in Session.objects.all()] == ["new"]


def test_beat_is_told_to_run_the_task_that_exists(settings):
    from config.celery import app

    app.loader.import_default_modules()
    [(name, entry)] = settings.CELERY_BEAT_SCHEDULE.items()
    ModelEntry.from_entry(name, app=app, **entry)
    planned = PeriodicTask.objects.get(name=name)
    assert planned.task in app.tasks
    assert (str(planned.interval), planned.expire_seconds) == ("every 3600 seconds", 3000)


@pytest.mark.django_db(transaction=True)
async def test_a_nul_that_a_model_wrote_is_kept_as_a_sign_that_every_database_takes():
    await Generation.objects.acreate(id="d" * 32, request={})
    transcript = Transcript()
    transcript.add(tokens(0, "a\0b"))
    assert await services.record_end(generation="d" * 32, transcript=transcript, end=done(1))
    assert (await Generation.objects.aget(id="d" * 32)).text == "a\ufffdb"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("reason", "kept"), [("length", "a"), ("cancelled", "a"), ("stop", "a\ufffd")])
async def test_a_character_that_the_end_cut_in_two_is_not_kept(reason, kept):
    await Generation.objects.acreate(id="d" * 32, request={})
    transcript = Transcript()
    transcript.add(tokens(0, "a"))
    end = Done(reason, "\ufffd", done(1).timings)
    transcript.add(end)
    assert await services.record_end(generation="d" * 32, transcript=transcript, end=end)
    assert (await Generation.objects.aget(id="d" * 32)).text == kept


def test_the_oldest_go_once_all_take_too_much_room(settings):
    settings.KEPT_BYTES = 2500
    for name, hours in (("a", 3), ("b", 2), ("c", 1)):
        Generation.objects.create(
            id=name * 32, request={}, state="done", size=1000, created=timezone.now() - timedelta(hours=hours)
        )
    share = Share.objects.create(owner="o" * 32)
    Lane.objects.create(share=share, place=0, generation_id="a" * 32)
    assert services.forget_old() == 1
    assert sorted(row.id[0] for row in Generation.objects.all()) == ["a", "c"]  # a page shows the oldest


def test_whoever_wrote_it_may_delete_it_and_nobody_elses(client):
    client.get("/")
    owner = client.session["playground_owner"]
    for name, whose in (("a", owner), ("b", owner), ("c", "other")):
        Generation.objects.create(id=name * 32, owner=whose, request={}, state="done")
    Generation.objects.create(id="d" * 32, owner=owner, request={}, state="running")
    share = Share.objects.create(owner=owner)
    Lane.objects.create(share=share, place=0, generation_id="a" * 32)
    assert client.post("/g/erase/").status_code == 302
    assert sorted(row.id[0] for row in Generation.objects.all()) == ["c", "d"]
    assert not Share.objects.exists()


def test_a_stranger_without_a_session_deletes_nothing(client):
    Generation.objects.create(id="a" * 32, owner="", request={}, state="done")
    client.post("/g/erase/")
    assert Generation.objects.count() == 1

"""Is it ready, what has it counted."""

from __future__ import annotations

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import User
from django.test import AsyncClient
from prometheus_client.parser import text_string_to_metric_families

from config.rates import networks
from tests.playground.conftest import Worker, done, started, tokens


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/readyz", "/health"])
async def test_ready_when_redis_database_and_worker_are(async_client, worker, path):
    response = await async_client.get(path)
    found = response.json()
    assert response.status_code == 200
    assert all(found[part]["ok"] for part in ("redis", "database", "worker"))
    assert "w1: tiny on numpy, idle" in found["worker"]["detail"]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("state", ["loading", "stopping", None])
async def test_not_ready_while_no_worker_could_serve(async_client, worker: Worker, state):
    worker.beat(state=state) if state else worker.die()
    response = await async_client.get("/readyz")
    assert (response.status_code, response.json()["worker"]["ok"]) == (503, False)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
async def test_a_missing_redis_is_named(async_client, settings):
    settings.REDIS_URL = "redis://127.0.0.1:1"
    response = await async_client.get("/readyz")
    found = response.json()
    assert response.status_code == 503
    assert (found["redis"]["ok"], found["database"]["ok"], found["worker"]["ok"]) == (False, True, False)
    assert "Redis does not answer" in found["redis"]["detail"]


def sample(text: str, name: str, **labels: str) -> float:
    for family in text_string_to_metric_families(text):
        for found in family.samples:
            if found.name == name and labels.items() <= found.labels.items():
                return found.value
    return 0.0


@pytest.mark.slow
async def test_metrics_count_generations_tokens_and_workers(open_page, async_client, worker):
    before = (await async_client.get("/metrics")).content.decode()
    async with open_page() as page:
        generation = await page.start()
        worker.publish(generation, started(), tokens(0, "a", "b"), done(2))
        await page.hear_until("done")
        text = (await async_client.get("/metrics")).content.decode()
        while sample(text, "monolane_generations_total", source="playground", outcome="length") == sample(
            before, "monolane_generations_total", source="playground", outcome="length"
        ):
            text = (await async_client.get("/metrics")).content.decode()

    def grown(name: str, **labels: str) -> float:
        return sample(text, name, **labels) - sample(before, name, **labels)

    assert grown("monolane_generations_total", source="playground", outcome="length") == 1
    assert grown("monolane_tokens_total", source="playground", kind="completion") == 2
    assert grown("monolane_tokens_total", source="playground", kind="prompt") == 3
    assert sample(text, "monolane_workers", state="idle") == 1
    assert sample(text, "monolane_inbox_requests", inbox="interactive") == 0


@pytest.mark.django_db(transaction=True)
async def test_a_stranger_hears_what_works_and_no_names(worker: Worker, settings):
    settings.TRUSTED_PROXIES = networks("TRUSTED_PROXIES", ["127.0.0.1"])
    stranger = {"X-Forwarded-For": "198.51.100.7"}
    response = await AsyncClient().get("/readyz", headers=stranger)
    assert response.status_code == 200
    assert response.json()["worker"] == {"ok": True}
    assert b"numpy" not in response.content
    assert (await AsyncClient().get("/metrics", headers=stranger)).status_code == 404


@pytest.mark.django_db(transaction=True)
async def test_monitors_that_are_named_hear_all(worker: Worker, settings):
    settings.MONITORS = networks("MONITORS", ["10.1.0.0/16"])
    settings.TRUSTED_PROXIES = networks("TRUSTED_PROXIES", ["127.0.0.1"])
    monitor = {"X-Forwarded-For": "10.1.2.3"}
    assert "numpy" in (await AsyncClient().get("/readyz", headers=monitor)).content.decode()
    assert (await AsyncClient().get("/metrics", headers=monitor)).status_code == 200
    assert (await AsyncClient().get("/metrics")).status_code == 404


@pytest.mark.django_db(transaction=True)
async def test_the_staff_hears_all_from_anywhere(worker: Worker, settings):
    user = await sync_to_async(User.objects.create_user)("ada", password="x", is_staff=True)
    settings.MONITORS = ()
    client = AsyncClient()
    await sync_to_async(client.force_login)(user)
    assert (await client.get("/metrics")).status_code == 200


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("said", ["{}", "not JSON", "[]", '{"name": "w2", "devices": 3}', "null"])
async def test_a_heartbeat_that_cannot_be_read_hides_nobody_else(worker: Worker, async_client, said):
    worker.redis.sadd("ml:workers", "w2")
    worker.redis.hset("ml:worker:w2", mapping={"json": said})
    response = await async_client.get("/readyz")
    assert response.status_code == 200
    assert "w1: tiny" in response.json()["worker"]["detail"]

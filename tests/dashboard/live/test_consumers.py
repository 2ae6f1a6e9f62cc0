"""The websocket of hints, on the real channel layer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from channels.db import database_sync_to_async
from channels.testing import WebsocketCommunicator
from django.db import connections

from config.asgi import application
from dashboard.measurements.importing import import_files
from dashboard.sweeps import lifecycle
from tests.dashboard import factories
from tests.dashboard.stack import Stack

ORIGIN = [(b"host", b"localhost:8000"), (b"origin", b"http://localhost:8000")]


@pytest.fixture(autouse=True)
async def own_connection(stack: Stack) -> AsyncIterator[None]:
    """The thread that asynchronous code asks the database from outlives a test; its connection must not."""
    yield
    await database_sync_to_async(lambda: connections["default"].close())()
    await database_sync_to_async(connections.__delitem__)("default")


def socket(query: str = "") -> Any:
    return WebsocketCommunicator(application, f"/ws/dashboard/{query}", headers=ORIGIN)  # type: ignore[no-untyped-call]


@pytest.mark.slow
async def test_page_of_a_sweep_run_hears_of_its_changes(stack: Stack) -> None:
    run = await database_sync_to_async(lambda: factories.run_of(factories.sweep()))()
    page = socket(f"?sweep={run.pk}")
    assert (await page.connect())[0]
    await database_sync_to_async(lifecycle.begin_run)(run_id=run.pk)
    assert await page.receive_json_from(5) == {"type": "sweep", "run": run.pk, "version": 1}
    await page.disconnect()


async def test_page_of_another_run_hears_nothing(stack: Stack) -> None:
    run = await database_sync_to_async(lambda: factories.run_of(factories.sweep()))()
    page = socket(f"?sweep={run.pk + 1}")
    await page.connect()
    await database_sync_to_async(lifecycle.begin_run)(run_id=run.pk)
    assert await page.receive_nothing(0.5)
    await page.disconnect()


async def test_list_of_runs_hears_of_an_import(stack: Stack, tmp_path: Any) -> None:
    import json

    page = socket()
    await page.connect()
    path = tmp_path / "m.json"
    path.write_text(json.dumps(factories.document()))
    await database_sync_to_async(import_files)(paths=[path])
    assert (await page.receive_json_from(5))["type"] == "measurement"
    await page.disconnect()


@pytest.mark.parametrize("query", ["?sweep=x", "?sweep=-1", "?sweep=" + "9" * 30, "?sweep=%00"])
async def test_senseless_question_is_closed(stack: Stack, query: str) -> None:
    page = socket(query)
    accepted, code = await page.connect()
    assert (accepted, code) == (False, 4400)


async def test_socket_from_another_site_is_refused(stack: Stack) -> None:
    foreign = [(b"origin", b"http://evil.example")]
    page: Any = WebsocketCommunicator(application, "/ws/dashboard/", headers=foreign)  # type: ignore[no-untyped-call]
    assert not (await page.connect())[0]


async def test_what_the_client_sends_changes_nothing(stack: Stack) -> None:
    page = socket()
    await page.connect()
    await page.send_to(text_data="{not json")
    await page.send_to(bytes_data=b"\0")
    assert await page.receive_nothing(0.3)
    await page.disconnect()

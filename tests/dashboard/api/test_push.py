"""Measurements come in over HTTP, from whoever has the token."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from dashboard.models import Measurement, Peer
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
TOKEN = "0123456789abcdef0123456789abcdef"
URL = "/api/runs"


@pytest.fixture(autouse=True)
def token(settings: Any) -> None:
    settings.DASHBOARD_PUSH_TOKEN = TOKEN


def push(client: Client, body: Any, token: str = TOKEN, query: str = "") -> Any:
    headers = {"Authorization": f"Bearer {token}"}
    return client.post(URL + query, json.dumps(body), content_type="application/json", headers=headers)


def test_measurement_is_stored_once(client: Client) -> None:
    body = [factories.document(), factories.document(day=1)]
    assert push(client, body).json() == {"added": 2, "known": 0}
    assert push(client, body[0]).json() == {"added": 0, "known": 1}
    assert Measurement.objects.count() == 2


@pytest.mark.parametrize("wrong", ["", "x", TOKEN[:-1], TOKEN + "0"])
def test_wrong_token_stores_nothing(client: Client, wrong: str) -> None:
    answer = push(client, factories.document(), token=wrong)
    assert answer.status_code == 401 and "DASHBOARD_PUSH_TOKEN" in answer.json()["error"]["message"]
    assert not Measurement.objects.exists()


def test_without_the_setting_nobody_may_push(client: Client, settings: Any) -> None:
    settings.DASHBOARD_PUSH_TOKEN = ""
    assert push(client, factories.document(), token="").status_code == 401


def test_private_dashboard_takes_a_push_too(client: Client, settings: Any) -> None:
    settings.DASHBOARD_PUBLIC = False
    assert push(client, factories.document()).status_code == 200
    assert client.get(URL).status_code == 401


def test_one_that_is_refused_keeps_out_the_others(client: Client) -> None:
    bad = factories.document()
    bad["mbu"]["measured"] = 0.8
    answer = push(client, [factories.document(day=1), bad])
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("Nothing was stored: mbu.measured is 0.8")
    assert not Measurement.objects.exists()


def test_body_that_is_no_json_is_refused(client: Client) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    answer = client.post(URL, b"{", content_type="application/json", headers=headers)
    assert answer.status_code == 400 and "not JSON" in answer.json()["error"]["message"]


def test_results_of_another_tool_become_peers(client: Client) -> None:
    row = {
        "build_commit": "abc", "model_filename": "m.gguf", "cpu_info": "a cpu", "gpu_info": "", "n_prompt": 0,
        "n_gen": 128, "samples_ts": [50.0, 51.0],
    }  # fmt: skip
    assert push(client, [row], query="?model=test-model&context=16").json() == {"added": 1, "known": 0}
    assert Peer.objects.get().model == "test-model"

"""Who may look: everybody by default; with the setting off, only who is signed in."""

from __future__ import annotations

from typing import Any

import pytest
from channels.testing import WebsocketCommunicator
from django.contrib.auth.models import AnonymousUser, Group, User
from django.test import Client

from dashboard.accounts.groups import GROUPS, ensure
from dashboard.live.consumers import HintsConsumer
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
PAGES = ("", "runs/", "regressions/", "roofline/", "sweeps/", "runs.json")


@pytest.fixture
def private(settings: Any) -> None:
    settings.DASHBOARD_PUBLIC = False


@pytest.mark.parametrize("page", PAGES)
def test_public_dashboard_needs_no_account(client: Client, page: str) -> None:
    assert client.get(f"/dashboard/{page}").status_code == 200


@pytest.mark.parametrize("page", PAGES)
def test_private_dashboard_asks_to_sign_in_and_comes_back(client: Client, private: None, page: str) -> None:
    response = client.get(f"/dashboard/{page}?a=1")
    assert response.status_code == 302
    assert response["Location"] == f"/dashboard/sign-in/?next=/dashboard/{page}%3Fa%3D1"


def test_private_api_answers_401_in_json(client: Client, private: None) -> None:
    response = client.get("/api/runs")
    assert response.status_code == 401
    assert "not public" in response.json()["error"]["message"]


def test_private_dashboard_is_open_to_every_account(client: Client, private: None) -> None:
    client.force_login(User.objects.create_user("ada"))
    factories.stored()
    assert client.get("/dashboard/runs/").status_code == 200
    assert client.get("/api/runs").status_code == 200


def test_private_dashboard_leaves_the_rest_alone(client: Client, private: None) -> None:
    assert client.get("/sandbox/").status_code == 200


async def test_private_dashboard_sends_no_hints_to_strangers(private: None, settings: Any) -> None:
    settings.CHANNEL_LAYERS = {"default": {"BACKEND": "channels.layers.InMemoryChannelLayer"}}
    socket = WebsocketCommunicator(HintsConsumer.as_asgi(), "/ws/dashboard/")  # type: ignore[arg-type]
    socket.scope["user"] = AnonymousUser()
    connected, code = await socket.connect()
    assert (connected, code) == (False, 4403)


def test_three_groups_of_rights_are_there_from_the_start() -> None:
    rights = {
        group.name: set(group.permissions.values_list("codename", flat=True)) for group in Group.objects.all()
    }
    assert rights == {name: set(codenames) for name, codenames in GROUPS.items()}
    view, run, manage = rights.values()
    assert view < run < manage
    assert "can_run_sweep" in run - view and "change_sweep" in manage - run


def test_group_that_an_administrator_changed_stays_as_it_is() -> None:
    Group.objects.get(name="Benchmarks: run").permissions.clear()
    ensure()
    assert not Group.objects.get(name="Benchmarks: run").permissions.exists()


def test_group_of_runners_may_start_a_sweep_from_the_page(client: Client) -> None:
    user = User.objects.create_user("ada")
    user.groups.add(Group.objects.get(name="Benchmarks: run"))
    client.force_login(user)
    assert client.post("/dashboard/sweeps/start/", {"sweep": factories.sweep().name}).status_code == 302

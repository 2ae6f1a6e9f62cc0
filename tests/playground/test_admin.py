"""Generations in the admin."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from engine.timings import Timings
from playground.models import Generation

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

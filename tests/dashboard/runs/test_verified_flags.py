"""A run that rests on a weaker check says so wherever its speed stands."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.models import Measurement
from engine.measuring.measurement import OWN, PARTIAL, Verified
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
FLAGS = {PARTIAL: "partly checked", OWN: "own check"}


def weak(kind: str, day: int = 0) -> Measurement:
    verified = Verified("a weaker check", True, None, kind=kind, limit=None)
    return factories.stored(verified=verified, day=day, git_sha=f"{day + 1:040x}")


@pytest.mark.parametrize("kind", FLAGS)
@pytest.mark.parametrize(
    "where",
    ["/dashboard/", "/dashboard/runs/", "/dashboard/roofline/", "{run}",
     "/dashboard/history/?configuration={of}", "/dashboard/compare/?run={pk}",
     "/dashboard/compare/commits/?base={base}&head={head}"],
)  # fmt: skip
@pytest.mark.slow
def test_every_page_flags_a_weaker_check(client: Client, kind: str, where: str) -> None:
    first, second = weak(kind), weak(kind, day=1)
    address = where.format(
        run=second.get_absolute_url(), pk=second.pk, of=second.configuration_id,
        base=first.git_sha, head=second.git_sha,
    )  # fmt: skip
    page = client.get(address).content.decode()
    assert FLAGS[kind] in page


def test_a_full_check_has_no_flag(client: Client) -> None:
    factories.stored()
    page = client.get("/dashboard/").content.decode()
    assert not any(flag in page for flag in FLAGS.values())


def test_the_api_and_the_export_tell_the_kind(client: Client) -> None:
    row = weak(OWN)
    assert client.get(f"/api/runs/{row.pk}").json()["verified_kind"] == OWN
    points = client.get(f"/api/series?configuration={row.configuration_id}").json()["points"]
    assert [point["verified_kind"] for point in points] == [OWN]
    assert ",own," in client.get("/dashboard/runs.csv").content.decode()

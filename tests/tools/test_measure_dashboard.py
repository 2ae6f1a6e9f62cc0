"""The dashboard's stopwatch touches no database but one that it has filled, and leaves nobody behind."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session

from dashboard import demo_data
from engine.measuring.statistics import samples_needed
from tests.dashboard import factories
from tools import measure_dashboard

pytestmark = pytest.mark.django_db


def test_empty_database_is_refused_and_told_to_be_filled() -> None:
    with pytest.raises(SystemExit, match="holds no made-up measurements; `fill` an empty one"):
        measure_dashboard.pages(1)
    assert not User.objects.exists()


def test_database_with_one_real_measurement_is_refused_untouched() -> None:
    list(demo_data.fill(12))
    factories.stored()
    with pytest.raises(SystemExit, match="holds measurements that were not made up"):
        measure_dashboard.pages(1)
    assert not User.objects.exists()


@pytest.mark.parametrize("fails", [False, True])
def test_account_that_asks_for_the_pages_is_removed_after(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Any, fails: bool
) -> None:
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}  # the page of a 404 names files
    list(demo_data.fill(12))
    path = "/dashboard/nowhere/" if fails else "/api/configurations"
    monkeypatch.setattr(measure_dashboard, "addresses", lambda: {"some answer": path})
    if fails:
        with pytest.raises(SystemExit, match="answered 404"):
            measure_dashboard.pages(1)
    else:
        measure_dashboard.pages(samples_needed(0.95))
        assert "some answer" in capsys.readouterr().out
    assert not User.objects.exists()
    assert not Session.objects.exists()

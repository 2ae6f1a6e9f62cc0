"""What every page says to browsers and caches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def plain_names(settings):
    """Nothing has been collected."""
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}


@pytest.mark.django_db
def test_a_page_shown_to_an_account_is_kept_by_no_cache(admin_client):
    assert "no-store" in admin_client.get("/dashboard/")["Cache-Control"]


@pytest.mark.django_db
def test_pages_use_nothing_of_the_device(client):
    assert "camera=()" in client.get("/dashboard/")["Permissions-Policy"]


def test_behind_tls_cookies_are_for_this_host_alone(tmp_path):
    code = (
        "from django.conf import settings as s; s.DEBUG;"
        "print(s.SESSION_COOKIE_NAME, s.CSRF_COOKIE_NAME, s.SESSION_COOKIE_SECURE, s.SESSION_COOKIE_PATH,"
        " s.SESSION_COOKIE_DOMAIN)"
    )
    environment = {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "HTTPS": "1",
        "MONOLANE_HOME": str(tmp_path),
        "PATH": "",
    }
    said = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert said.split() == ["__Host-sessionid", "__Host-csrftoken", "True", "/", "None"]

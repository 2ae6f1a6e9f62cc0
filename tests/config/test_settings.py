"""What the environment turns into, each time in a fresh process: settings are read once."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 60
_READER = """
import io, json, os, sys, traceback
import celery, csp.constants, django.http, environ, numpy, redis.asyncio, structlog, whitenoise.compress
for line in sys.stdin:
    names, environment = json.loads(line)
    if os.fork():
        if os.wait()[1]:
            print(json.dumps("it ended without an answer"), flush=True)
        continue
    os.environ.clear()
    os.environ.update(environment)
    sys.stderr = said = io.StringIO()
    try:
        import config.settings as s
        print(json.dumps({name: getattr(s, name) for name in names}, default=str), flush=True)
    except BaseException:
        print(json.dumps(said.getvalue() + traceback.format_exc()), flush=True)
    os._exit(0)
"""
"""Forks for each question. What it has imported is others' code, which took half a second each time."""


@pytest.fixture(scope="module")
def reader() -> Iterator[subprocess.Popen[str]]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with subprocess.Popen(
        [sys.executable, "-c", _READER],
        cwd=ROOT, env=kept, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:  # fmt: skip
        yield process
        process.kill()


@pytest.fixture
def read(reader: subprocess.Popen[str]) -> Callable[..., dict[str, Any]]:
    """Values of settings by their names, as an environment makes them.

    Raises RuntimeError with what they say to one that they refuse.
    """

    def ask(home: Path, *names: str, **environment: str) -> dict[str, Any]:
        assert reader.stdin is not None and reader.stdout is not None
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        question = [names, {**kept, "MONOLANE_HOME": str(home), **environment}]
        reader.stdin.write(json.dumps(question) + "\n")
        reader.stdin.flush()
        readable, _, _ = select.select([reader.stdout], [], [], TIMEOUT_S)
        assert readable, f"no answer within {TIMEOUT_S} s"
        answer = json.loads(reader.stdout.readline())
        if isinstance(answer, str):
            raise RuntimeError(answer)
        return dict(answer)

    return ask


def test_nothing_set_means_one_safe_machine(read, tmp_path):
    found = read(tmp_path, "DEBUG", "ALLOWED_HOSTS", "DATABASES", "REDIS_URL", "CELERY_BROKER_URL", "HTTPS")
    assert found["DEBUG"] is False
    assert found["ALLOWED_HOSTS"] == ["localhost", "127.0.0.1", "[::1]"]
    assert found["DATABASES"]["default"]["NAME"] == str(tmp_path / "db.sqlite3")
    assert found["REDIS_URL"] == f"unix://{tmp_path}/redis.sock"
    assert found["CELERY_BROKER_URL"] == f"redis+socket://{tmp_path}/redis.sock"
    assert found["HTTPS"] is False


def test_an_empty_variable_counts_as_unset(read, tmp_path):
    found = read(
        tmp_path, "DATABASES", "ALLOWED_HOSTS", "REDIS_URL", DATABASE_URL="", ALLOWED_HOSTS="", REDIS_URL=""
    )
    assert found["DATABASES"]["default"]["ENGINE"].endswith("sqlite3")
    assert "localhost" in found["ALLOWED_HOSTS"]
    assert found["REDIS_URL"].startswith("unix://")


def test_sqlite_lets_readers_go_on_and_writers_wait(read, tmp_path):
    options = read(tmp_path, "DATABASES")["DATABASES"]["default"]["OPTIONS"]
    assert "journal_mode=WAL" in options["init_command"]
    assert (options["transaction_mode"], options["timeout"]) == ("IMMEDIATE", 20)


def test_a_database_url_is_postgresql(read, tmp_path):
    found = read(tmp_path, "DATABASES", DATABASE_URL="postgres://u:p%40ss@db:5433/monolane")["DATABASES"][
        "default"
    ]
    assert found["ENGINE"] == "django.db.backends.postgresql"
    assert (found["HOST"], found["PORT"], found["NAME"], found["PASSWORD"]) == (
        "db",
        5433,
        "monolane",
        "p@ss",
    )
    assert found["CONN_HEALTH_CHECKS"] is True
    assert "init_command" not in found.get("OPTIONS", {})


def test_a_foreign_database_is_refused_without_showing_its_password(read, tmp_path):
    with pytest.raises(RuntimeError) as refused:
        read(tmp_path, "DATABASES", DATABASE_URL="mysql://u:hunter2@db/x")
    assert "DATABASE_URL begins with 'mysql'; it must be postgres://" in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_https_guards_cookies_and_redirects(read, tmp_path):
    names = ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT", "SECURE_HSTS_SECONDS")
    assert set(read(tmp_path, *names).values()) == {False}
    found = read(tmp_path, *names, HTTPS="1")
    assert all(found.values())


def test_the_channel_layer_never_times_out_on_silence(read, tmp_path):
    layer = read(tmp_path, "CHANNEL_LAYERS")["CHANNEL_LAYERS"]["default"]
    assert layer["CONFIG"]["hosts"][0]["socket_timeout"] is None
    assert "pubsub" in layer["BACKEND"].lower()


def test_a_task_is_redelivered_only_after_any_sweep_has_ended(read, tmp_path):
    options = read(tmp_path, "CELERY_BROKER_TRANSPORT_OPTIONS")["CELERY_BROKER_TRANSPORT_OPTIONS"]
    assert options["visibility_timeout"] >= 6 * 3600


def test_django_finds_nothing_to_warn_of_behind_https(tmp_path):
    environment = {**os.environ, "MONOLANE_HOME": str(tmp_path), "HTTPS": "1"}
    done = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    complaints = [line for line in done.stderr.splitlines() if "W0" in line]
    # Subdomains and the preload list belong to whoever owns the domain.
    assert [line for line in complaints if "W005" not in line and "W021" not in line] == []


@pytest.mark.parametrize("variable", ["DEBUG", "HTTPS"])
def test_a_switch_is_off_unless_it_is_turned_on(read, tmp_path, variable):
    assert read(tmp_path, variable)[variable] is False
    assert read(tmp_path, variable, **{variable: "0"})[variable] is False
    assert read(tmp_path, variable, **{variable: "1"})[variable] is True


@pytest.mark.parametrize("value", ["0", "-1", "a week", "40000"])
def test_how_long_generations_stay_is_a_number_of_days(read, tmp_path, value):
    with pytest.raises(RuntimeError, match=f"GENERATION_DAYS is '{value}'; it must be a whole number"):
        read(tmp_path, "GENERATION_DAYS", GENERATION_DAYS=value)


@pytest.mark.parametrize(
    ("environment", "required"),
    [
        ({}, False),
        ({"HTTPS": "1"}, True),
        ({"HTTPS": "1", "API_KEY_REQUIRED": ""}, True),
        ({"HTTPS": "1", "API_KEY_REQUIRED": "0"}, False),
        ({"API_KEY_REQUIRED": "1"}, True),
    ],
)
def test_what_is_served_to_the_outside_asks_for_a_key_unless_told_otherwise(
    read, tmp_path, environment, required
):
    assert read(tmp_path, "API_KEY_REQUIRED", **environment)["API_KEY_REQUIRED"] is required

"""Signing in: no need to be staff, back to where one came from, and no endless guessing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.cache import cache, caches
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory
from structlog.testing import capture_logs

from config.rates import networks
from dashboard.circuit_breaker import CircuitBreaker
from dashboard.sign_in import counts
from dashboard.sign_in.throttle import MOST, Throttle

pytestmark = pytest.mark.django_db
URL = "/dashboard/sign-in/"
_GUESS = """
import sys
import django
django.setup()
from django.test import RequestFactory
from dashboard.sign_in.throttle import Throttle
for _ in range(int(sys.argv[1])):
    Throttle().authenticate(RequestFactory().post("/"), "ada")
"""


@pytest.fixture(autouse=True)
def ada(settings: Any, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    settings.REDIS_URL = redis_url
    monkeypatch.setattr(counts, "_circuit", CircuitBreaker(10.0))
    cache.clear()
    yield User.objects.create_user("ada", password="right")
    cache.clear()


def sign_in(client: Client, password: str, name: str = "ada", **more: str) -> Any:
    return client.post(URL, {"username": name, "password": password, **more}, follow=True)


def signed_in(response: Any) -> bool:
    return "Sign out" in response.content.decode()


def test_account_that_is_not_staff_signs_in_and_out(client: Client) -> None:
    assert signed_in(sign_in(client, "right"))
    page = client.post("/dashboard/sign-out/", follow=True).content.decode()
    assert "Sign out" not in page and URL in page


def test_signing_out_needs_a_post(client: Client) -> None:
    assert client.get("/dashboard/sign-out/").status_code == 405


def test_one_comes_back_to_where_one_was(client: Client) -> None:
    assert sign_in(client, "right", next="/dashboard/sweeps/").redirect_chain == [("/dashboard/sweeps/", 302)]


@pytest.mark.parametrize("elsewhere", ["https://example.org/", "//example.org/", "javascript:alert(1)"])
def test_nobody_is_sent_to_another_site(client: Client, elsewhere: str) -> None:
    assert sign_in(client, "right", next=elsewhere).redirect_chain == [("/dashboard/", 302)]


def test_wrong_password_says_so_and_keeps_the_name(client: Client) -> None:
    page = sign_in(client, "wrong").content.decode()
    assert "No active account" in page and 'value="ada"' in page


def test_page_is_open_where_the_dashboard_is_not(client: Client, settings: Any) -> None:
    settings.DASHBOARD_PUBLIC = False
    assert client.get(URL).status_code == 200


@pytest.mark.parametrize("path", [URL, "/admin/login/"])
def test_too_many_guesses_have_to_wait_even_with_the_right_password(client: Client, path: str) -> None:
    User.objects.filter(username="ada").update(is_staff=True)
    for _ in range(MOST):
        client.post(path, {"username": "ada", "password": "wrong"})
    client.post(path, {"username": "ADA" if path == URL else "ada", "password": "right"})
    assert "_auth_user_id" not in client.session
    assert "wait 5 minutes" in sign_in(client, "right").content.decode()


def test_guesses_that_another_web_process_heard_count_here(client: Client, redis_url: str) -> None:
    program = [sys.executable, "-c", _GUESS, str(MOST)]
    subprocess.run(program, check=True, timeout=60, env={**os.environ, "REDIS_URL": redis_url})
    assert "wait 5 minutes" in sign_in(client, "right").content.decode()


def test_guesses_at_the_same_time_all_count() -> None:
    def allowed(_: int) -> bool:
        try:
            Throttle().authenticate(RequestFactory().post(URL), "ada")
        except PermissionDenied:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(allowed, range(3 * MOST))) == MOST


def test_while_redis_is_away_this_process_counts_and_the_log_says_so(
    client: Client, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counts, "_circuit", CircuitBreaker(3600.0))
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    with capture_logs() as said:
        for _ in range(MOST):
            sign_in(client, "wrong")
        assert not signed_in(sign_in(client, "right"))
    assert [line["event"] for line in said] == ["each_process_counts_for_itself"]


def test_a_count_that_expires_while_it_is_increased_begins_again(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:1/0"
    held = caches["default"]
    add = held.add

    def there_and_then_gone(key: str, *_: Any) -> bool:
        monkeypatch.setattr(held, "add", add)
        return False

    monkeypatch.setattr(held, "add", there_and_then_gone)
    assert [counts.increase("guesses", 60) for _ in range(2)] == [1, 2]


def test_guesses_for_one_name_do_not_keep_another_out(client: Client) -> None:
    for _ in range(MOST):
        sign_in(client, "wrong", "mallory")
    assert signed_in(sign_in(client, "right"))


def test_guesses_from_one_visitor_behind_the_proxy_do_not_keep_another_out(settings: Any) -> None:
    settings.TRUSTED_PROXIES = networks("TRUSTED_PROXIES", ["10.0.0.5"])
    behind = {"REMOTE_ADDR": "10.0.0.5", "HTTP_X_FORWARDED_FOR": "192.0.2.7"}
    thief = Client(**behind)
    for _ in range(MOST):
        sign_in(thief, "wrong")
    assert not signed_in(sign_in(thief, "right"))
    owner = Client(**{**behind, "HTTP_X_FORWARDED_FOR": "198.51.100.1"})
    assert signed_in(sign_in(owner, "right"))


def test_nobody_escapes_the_wait_with_a_header_of_their_own(settings: Any) -> None:
    settings.TRUSTED_PROXIES = []
    for number in range(MOST):
        sign_in(Client(HTTP_X_FORWARDED_FOR=f"192.0.2.{number}"), "wrong")
    assert not signed_in(sign_in(Client(), "right"))


def test_right_password_in_time_forgets_the_wrong_ones(client: Client) -> None:
    for _ in range(MOST - 1):
        sign_in(client, "wrong")
    sign_in(client, "right")
    client.post("/dashboard/sign-out/")
    sign_in(client, "wrong")
    assert signed_in(sign_in(client, "right"))


def test_requests_without_csrf_token_are_refused() -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(URL, {"username": "ada", "password": "right"}).status_code == 403

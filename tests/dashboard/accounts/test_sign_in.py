"""Signing in: no need to be staff, back to where one came from, and no endless guessing."""

from __future__ import annotations

from typing import Any

import pytest
from axes.models import AccessAttempt
from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from config.rates import networks

pytestmark = pytest.mark.django_db
URL = "/dashboard/sign-in/"
MOST = settings.AXES_FAILURE_LIMIT


@pytest.fixture(autouse=True)
def ada() -> User:
    return User.objects.create_user("ada", password="right")


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


@pytest.mark.slow
@pytest.mark.parametrize("path", [URL, "/admin/login/"])
def test_too_many_guesses_have_to_wait_even_with_the_right_password(client: Client, path: str) -> None:
    User.objects.filter(username="ada").update(is_staff=True)
    for _ in range(MOST):
        client.post(path, {"username": "ada", "password": "wrong"})
    answer = client.post(path, {"username": "ada", "password": "right"})
    assert "_auth_user_id" not in client.session
    assert answer.status_code == 429 and 0 < int(answer["Retry-After"]) <= 300
    assert "Try again in 5 minutes, at " in answer.content.decode()


def test_guesses_for_many_names_from_one_address_count_together(client: Client) -> None:
    for number in range(MOST):
        sign_in(client, "wrong", f"name-{number}")
    assert not signed_in(sign_in(client, "right"))


def test_another_address_is_not_kept_out(client: Client) -> None:
    for _ in range(MOST):
        sign_in(client, "wrong")
    assert signed_in(sign_in(Client(REMOTE_ADDR="192.0.2.1"), "right"))


def test_address_may_try_again_when_the_time_is_up(client: Client) -> None:
    for _ in range(MOST):
        sign_in(client, "wrong")
    sign_in(client, "wrong")
    AccessAttempt.objects.update(attempt_time=timezone.now() - settings.AXES_COOLOFF_TIME)
    assert signed_in(sign_in(client, "right"))


def test_own_account_does_not_wipe_out_the_guesses_at_another(client: Client) -> None:
    User.objects.create_user("mallory", password="own")
    for _ in range(MOST - 1):
        sign_in(client, "wrong")
    sign_in(client, "own", "mallory")
    client.post("/dashboard/sign-out/")
    sign_in(client, "wrong")
    assert not signed_in(sign_in(client, "right"))


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
    settings.TRUSTED_PROXIES = ()
    for number in range(MOST):
        sign_in(Client(HTTP_X_FORWARDED_FOR=f"192.0.2.{number}"), "wrong")
    assert not signed_in(sign_in(Client(), "right"))


def test_requests_without_csrf_token_are_refused() -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(URL, {"username": "ada", "password": "right"}).status_code == 403


def test_an_account_that_is_not_staff_changes_its_own_password(client: Client, ada: User) -> None:
    sign_in(client, "right")
    elsewhere = Client()
    sign_in(elsewhere, "right")
    fields = {"old_password": "right", "new_password1": "a longer one", "new_password2": "a longer one"}
    page = client.post("/dashboard/password/", fields, follow=True)
    assert "Your password was changed." in page.content.decode() and signed_in(page)
    assert "Sign out" not in elsewhere.get("/dashboard/").content.decode()
    ada.refresh_from_db()
    assert ada.check_password("a longer one")


def test_a_password_changes_only_for_whoever_knows_it(client: Client, ada: User) -> None:
    sign_in(client, "right")
    fields = {"old_password": "wrong", "new_password1": "a longer one", "new_password2": "a longer one"}
    assert "field-error" in client.post("/dashboard/password/", fields).content.decode()
    ada.refresh_from_db()
    assert ada.check_password("right")


def test_a_stranger_has_no_password_to_change(client: Client) -> None:
    assert client.get("/dashboard/password/").status_code == 302

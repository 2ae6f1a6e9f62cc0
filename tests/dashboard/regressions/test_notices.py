"""Who is told when a regression opens, and what a hostile receiver cannot make this server do."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.utils import timezone

from config.webhook import Webhook, webhook
from dashboard import celery_bridge, tasks
from dashboard.models import Regression
from dashboard.regressions import notices, services
from engine.measuring.measurement import FirstToken, MeasuredDevice
from tests.dashboard.regressions.test_services import GOOD, history

SECRET = "a secret of sixteen or more"


class Receiver:
    """A server on loopback that keeps what it is sent and answers with `status`."""

    def __init__(self) -> None:
        self.status = 204
        self.location = ""
        self.delay_s = 0.0
        self.calls: list[tuple[dict[str, str], bytes]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.calls.append((dict(self.headers), body))
                threading.Event().wait(receiver.delay_s)
                self.send_response(receiver.status)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.webhook = Webhook(f"http://127.0.0.1:{self.server.server_port}/hook", SECRET)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def regression(db: None) -> Regression:
    history(*GOOD, 80, 80)
    return Regression.objects.select_related("configuration").get()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []

    def told(name: str, key: int) -> bool:
        found.append((name, key))
        return True

    monkeypatch.setattr(celery_bridge, "tell", told)
    return found


def test_opening_asks_for_what_is_configured(
    db: None, settings: Any, asked: list[tuple[str, int]], django_capture_on_commit_callbacks: Any
) -> None:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    settings.REGRESSION_WEBHOOK = Webhook("https://example.org/", SECRET)
    with django_capture_on_commit_callbacks(execute=True):
        history(*GOOD, 80, 80)
    pk = Regression.objects.get().pk
    assert asked == [(services.EMAIL_TASK, pk), (services.WEBHOOK_TASK, pk)]


def test_nothing_is_asked_for_where_nothing_is_configured(
    db: None, asked: list[tuple[str, int]], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        history(*GOOD, 80, 80)
    assert asked == []


def test_email_names_the_change_the_commits_and_the_page(regression: Regression, settings: Any) -> None:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    settings.SITE_URL = "https://bench.example.org"
    tasks.email_regression(regression.pk)
    (message,) = mail.outbox
    assert message.to == ["ops@example.org"]
    assert "-20.0%" in message.subject
    assert regression.bad_sha in message.body
    assert f"https://bench.example.org/dashboard/regressions/{regression.pk}/" in message.body


def test_summary_has_the_metrics_name_and_unit(regression: Regression) -> None:
    regression.baseline, regression.value = 100.25, 80.2
    regression.good_sha, regression.bad_sha = "a" * 40, "b" * 40
    found = notices.summary(regression)
    assert found.startswith("Decode speed of test-model on numpy")
    assert found.endswith("-20.0% (100.25 to 80.2 tok/s) since bbbbbbbbb")


def test_summary_points_at_the_environment_where_the_commit_is_the_same(regression: Regression) -> None:
    regression.good_sha = regression.bad_sha = "a" * 40
    assert notices.summary(regression).endswith(" at one commit, aaaaaaaaa: look at the environment")


def test_email_is_sent_once_however_often_the_task_is_delivered(
    regression: Regression, settings: Any
) -> None:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    tasks.email_regression(regression.pk)
    tasks.email_regression(regression.pk)
    assert len(mail.outbox) == 1


def test_call_is_signed_over_its_time_and_body(regression: Regression, receiver: Receiver) -> None:
    notices.call(regression, receiver.webhook)
    ((headers, body),) = receiver.calls
    parts = dict(part.split("=") for part in headers["Monolane-Signature"].split(","))
    expected = hmac.new(SECRET.encode(), f"{parts['t']}.".encode() + body, hashlib.sha256).hexdigest()
    assert parts["v1"] == expected
    assert headers["Monolane-Delivery"] == f"regression-{regression.pk}"
    sent = json.loads(body)
    assert (sent["event"], sent["metric"], sent["change"]) == (
        "regression.opened",
        "tok_s",
        pytest.approx(-0.2),
    )
    regression.refresh_from_db()
    assert regression.called is not None


@pytest.mark.slow
@pytest.mark.parametrize("status", [301, 302, 307, 400, 404, 500])
def test_answer_that_is_not_2xx_is_a_failure_and_not_followed(
    regression: Regression, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    receiver.location = receiver.webhook.url
    with pytest.raises(notices.NotDelivered, match=f"answered {status}"):
        notices.call(regression, receiver.webhook)
    assert len(receiver.calls) == 1
    regression.refresh_from_db()
    assert regression.called is None


def test_receiver_that_does_not_answer_in_time_is_a_failure(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "TIMEOUT_S", 0.05)
    receiver.delay_s = 0.5
    with pytest.raises(notices.NotDelivered, match="could not be called"):
        notices.deliver(receiver.webhook, b"{}", "x")


def test_receiver_that_is_not_there_is_a_failure(receiver: Receiver) -> None:
    receiver.server.shutdown()
    receiver.server.server_close()
    with pytest.raises(notices.NotDelivered, match="could not be called"):
        notices.deliver(receiver.webhook, b"{}", "x")


def test_failed_delivery_is_retried_with_a_growing_pause_and_given_up() -> None:
    for task in (tasks.call_webhook, tasks.email_regression):
        assert task.max_retries == 5
        assert task.retry_backoff == 10
    assert notices.NotDelivered in tasks.call_webhook.autoretry_for


def test_notice_that_celery_lost_is_asked_for_again_within_the_hour(
    regression: Regression, settings: Any, asked: list[tuple[str, int]]
) -> None:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    services.ask_for_notices(regression)
    services.ask_again()
    assert len(asked) == 1, "not at once: Celery may be retrying"
    services.ask_again(now=timezone.now() + timedelta(hours=2))
    assert len(asked) == 2
    Regression.objects.update(emailed=timezone.now())
    services.ask_again(now=timezone.now() + timedelta(hours=4))
    assert len(asked) == 2


def test_notice_that_the_broker_did_not_take_is_asked_for_again_within_the_minute(
    regression: Regression, settings: Any, asked: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    with monkeypatch.context() as away:
        away.setattr(celery_bridge, "tell", lambda *_: False)
        services.ask_for_notices(regression)
    services.ask_again()
    assert asked == [(services.EMAIL_TASK, regression.pk)]
    services.ask_again()
    assert len(asked) == 1


@pytest.fixture
def mails(settings: Any, asked: list[tuple[str, int]]) -> list[tuple[str, int]]:
    settings.REGRESSION_EMAILS = ["ops@example.org"]
    return asked


SLOW_FIRST_TOKEN = FirstToken(50.0, 5)


def test_one_change_that_two_metrics_show_is_one_notice_that_names_both(
    db: None, mails: list[tuple[str, int]], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        history(*GOOD)
        history(80, 80, start=5, ttft_ms=SLOW_FIRST_TOKEN)
    first = Regression.objects.get(metric="tok_s")
    assert Regression.objects.get(metric="ttft_ms").cause == first
    assert mails == [(services.EMAIL_TASK, first.pk)]
    tasks.email_regression(first.pk)
    assert "Of the same cause:\n  Time to first token" in mail.outbox[0].body
    assert len(notices.payload(first)["same_cause"]) == 1


def test_two_configurations_slower_between_the_same_commits_have_one_cause(db: None) -> None:
    for context in (16, 32):
        history(*GOOD, 80, 80, context=context)
    first, second = Regression.objects.order_by("pk")
    assert (first.cause, second.cause) == (None, first)


def test_another_hardware_is_another_cause(db: None) -> None:
    history(*GOOD, 80, 80)
    other = (MeasuredDevice("another device", 0.0, 50.0),)
    history(*GOOD, 80, 80, devices=other)
    assert [r.cause for r in Regression.objects.all()] == [None, None]


def test_recovery_is_told_once_nothing_of_the_cause_stands(
    db: None, mails: list[tuple[str, int]], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        history(*GOOD)
        history(80, 80, start=5, ttft_ms=SLOW_FIRST_TOKEN)
    first = Regression.objects.get(metric="tok_s")
    mails.clear()
    with django_capture_on_commit_callbacks(execute=True):
        history(100, 100, start=7, ttft_ms=SLOW_FIRST_TOKEN)
    assert mails == [], "the first token is still slow"
    with django_capture_on_commit_callbacks(execute=True):
        history(100, 100, start=9)
    assert mails == [(services.EMAIL_TASK, first.pk)]
    tasks.email_regression(first.pk)
    tasks.email_regression(first.pk)
    (message,) = mail.outbox
    assert "Recovered: Decode speed" in message.subject
    first.refresh_from_db()
    assert first.closing_emailed is not None
    assert notices.payload(first)["event"] == "regression.recovered"


def test_webhook_needs_tls_a_host_and_a_secret() -> None:
    assert webhook("W", "", "") is None
    assert webhook("W", "https://example.org/x", SECRET) == Webhook("https://example.org/x", SECRET)
    assert webhook("W", "http://127.0.0.1:9/x", SECRET) is not None
    for url, secret, message in (
        ("http://example.org/", SECRET, "must be an https address"),
        ("file:///etc/passwd", SECRET, "must be an https address"),
        ("gopher://example.org/", SECRET, "must be an https address"),
        ("https://user:password@example.org/", SECRET, "no user or password"),
        ("https:///x", SECRET, "must name a host"),
        ("https://example.org/", "short", "W_SECRET has 5 characters"),
    ):
        with pytest.raises(ImproperlyConfigured, match=message):
            webhook("W", url, secret)


def test_secret_is_not_shown() -> None:
    assert SECRET not in repr(Webhook("https://example.org", SECRET))

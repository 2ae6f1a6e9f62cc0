"""What is sent when a regression opens and when it is over: an e-mail, and a signed webhook.

Where to is a setting and nothing else: no form, URL or row can make this server call an address. Redirects
are not followed, the answer's body is not read, and a call takes TIMEOUT_S at most.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from django.conf import settings
from django.core.mail import send_mail
from django.utils import timezone

from config.webhook import Webhook
from dashboard.api import shapes
from dashboard.measurements.metrics import METRICS
from dashboard.models import Regression
from dashboard.templatetags.figures import exact

TIMEOUT_S = 5.0
SIGNATURE = "Monolane-Signature"


class NotDelivered(Exception):
    """The webhook's receiver did not answer with a 2xx status in time."""


def summary(regression: Regression) -> str:
    """One line that says what got slower, by how much and since which commit."""
    metric = METRICS[regression.metric]
    return (
        f"{metric.title} of {regression.configuration}: {regression.change:+.1%} "
        f"({exact(regression.baseline)} to {exact(regression.value)} {metric.unit}){_since(regression)}"
    )


def _since(regression: Regression) -> str:
    if not regression.bad_sha:
        return ""
    commit = regression.bad_sha[:9]
    if regression.bad_sha == regression.good_sha:
        return f" at one commit, {commit}: look at the environment"
    return f" since {commit}"


def address(regression: Regression) -> str:
    """Its page; the path alone if the settings do not say where this site is."""
    return f"{settings.SITE_URL}{regression.get_absolute_url()}"


def headline(regression: Regression) -> str:
    """What happened, and to what: "Regression: ...", "Recovered: ..." or "Accepted: ..."."""
    word = "Regression" if regression.stands else regression.fate.capitalize()
    return f"{word}: {summary(regression)}"


def others(regression: Regression) -> list[str]:
    """A summary of each other regression of the same cause, which has no notice of its own."""
    effects = regression.effects.select_related("configuration").order_by("pk")
    return [summary(one) for one in effects]


def email(regression: Regression) -> None:
    """Sends the e-mail and notes that. Raises OSError or SMTPException."""
    also = "".join(f"  {line}\n" for line in others(regression))
    body = (
        f"{headline(regression)}\n\n"
        f"Threshold {regression.threshold:.1%}, against the best level before.\n"
        f"Last good commit: {regression.good_sha or 'unknown'}\n"
        f"First bad commit: {regression.bad_sha or 'unknown'}\n\n"
        + (f"Of the same cause:\n{also}\n" if also else "")
        + f"{address(regression)}\n"
    )
    send_mail(
        f"[Monolane] {headline(regression)}"[:200],
        body,
        settings.DEFAULT_FROM_EMAIL,
        settings.REGRESSION_EMAILS,
    )
    Regression.objects.filter(pk=regression.pk).update(**{regression.told[0]: timezone.now()})


def call(regression: Regression, webhook: Webhook) -> None:
    """Calls the webhook and notes that. Raises NotDelivered."""
    body = json.dumps(payload(regression), sort_keys=True).encode()
    delivery = f"regression-{regression.pk}" + ("" if regression.stands else "-closed")
    deliver(webhook, body, delivery)
    Regression.objects.filter(pk=regression.pk).update(**{regression.told[1]: timezone.now()})


def payload(regression: Regression) -> dict[str, Any]:
    """What the webhook is sent: figures in the metric's unit, changes as shares."""
    return {
        "event": f"regression.{'opened' if regression.stands else regression.fate}",
        "id": regression.pk,
        "url": address(regression),
        "text": f"{headline(regression)} {address(regression)}",
        "same_cause": others(regression),
        "metric": regression.metric,
        "baseline": regression.baseline,
        "value": regression.value,
        "change": regression.change,
        "threshold": regression.threshold,
        "good_sha": regression.good_sha,
        "bad_sha": regression.bad_sha,
        "since": regression.since.isoformat(),
        "configuration": shapes.configuration(regression.configuration),
    }


def deliver(webhook: Webhook, body: bytes, delivery: str, *, now: float | None = None) -> None:
    """Posts `body`, signed. Raises NotDelivered; the receiver may have got it all the same."""
    request = urllib.request.Request(  # noqa: S310 - the scheme was checked with the setting
        webhook.url,
        data=body,
        method="POST",
        headers={
            "Content-Type": "application/json",
            "User-Agent": "Monolane",
            "Monolane-Delivery": delivery,
            SIGNATURE: signature(webhook.secret, body, int(now or time.time())),
        },
    )
    try:
        with _OPENER.open(request, timeout=TIMEOUT_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    except (OSError, HTTPException) as error:
        raise NotDelivered(f"the webhook could not be called: {error}") from error
    if not 200 <= status < 300:
        raise NotDelivered(f"the webhook answered {status}; it must answer with a 2xx status")


def signature(secret: str, body: bytes, at: int) -> str:
    """ "t=SECONDS,v1=HEX": HMAC-SHA256 of "SECONDS.BODY", so that a receiver can refuse an old call."""
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256)
    return f"t={at},v1={mac.hexdigest()}"


class _StayThere(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: nobody else chooses where this server calls."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


_OPENER = urllib.request.build_opener(_StayThere)

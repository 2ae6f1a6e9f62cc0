"""Who could not sign in, in the log: axes keeps the count, whoever reads the log sees the attempt."""

from __future__ import annotations

from typing import Any

import structlog
from django.contrib.auth.signals import user_login_failed
from django.dispatch import receiver
from django.http import HttpRequest

from config.addresses import address_of

log = structlog.get_logger(__name__)
NAME_CHARS = 150


@receiver(user_login_failed, dispatch_uid="log_failed_sign_in")
def log_failure(credentials: dict[str, Any], request: HttpRequest | None = None, **_: Any) -> None:
    name = str(credentials.get("username") or "")[:NAME_CHARS]
    log.warning("sign_in_failed", name=name, address="" if request is None else address_of(request))

"""`POST /api/runs`: measurements from other machines, with a token in place of an account."""

from __future__ import annotations

import hmac
import json
from http import HTTPStatus
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from ninja import Schema
from ninja.security import HttpBearer

from dashboard.api.errors import ApiError
from dashboard.measurements.foreign import Told
from dashboard.measurements.importing import import_documents
from engine.errors import MeasurementError

SOURCE = "pushed over HTTP"


class PushToken(HttpBearer):
    """The token of the setting DASHBOARD_PUSH_TOKEN; without one nothing can be pushed."""

    def authenticate(self, _request: HttpRequest, token: str) -> bool | None:
        expected = settings.DASHBOARD_PUSH_TOKEN
        return (bool(expected) and hmac.compare_digest(token.encode(), expected.encode())) or None


class Pushed(Schema):
    """How many measurements were new, and how many were stored before."""

    added: int
    known: int


def push(request: HttpRequest, told: Told) -> dict[str, int]:
    """Stores the body: one JSON value or a list of them, whole or not at all. Raises ApiError."""
    try:
        data: Any = json.loads(request.body)
    except (ValueError, RecursionError) as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}.") from error
    documents = data if isinstance(data, list) else [data]
    try:
        added, known = import_documents(documents=documents, source=SOURCE, told=told)
    except MeasurementError as error:
        raise ApiError(HTTPStatus.BAD_REQUEST, f"Nothing was stored: {error}.") from error
    return {"added": added, "known": known}

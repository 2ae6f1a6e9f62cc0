"""Hints to open pages cost whoever gives them little, whatever becomes of Redis."""

from __future__ import annotations

import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from dashboard.live import notifications
from tests.mute import Mute

_SEND = notifications._send


def test_a_redis_that_hangs_holds_up_one_hint_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    monkeypatch.setattr(notifications, "_send", _SEND)
    monkeypatch.setattr(notifications, "PATIENCE_S", 0.2)
    with Mute() as mute:
        layer = {
            **settings.CHANNEL_LAYERS["default"],
            "CONFIG": {"hosts": [{"address": mute.url, "socket_timeout": None}]},
        }
        settings.CHANNEL_LAYERS = {"default": layer}
        begun = time.monotonic()
        with capture_logs() as said:
            notifications.measurement_added(1)
            notifications.measurement_added(2)
        assert time.monotonic() - begun < 2.0
    assert [line["event"] for line in said] == ["hints_lost"]
    assert "TimeoutError" in said[0]["error"], "an error without words is told of by its name"

"""Sleeps of the threads that look for tokens."""

from __future__ import annotations

import ctypes
import sys
import threading

import pytest

from engine.timer_slack import sleep_precisely

PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30
ORDINARY_NS = 50_000


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a timer slack")
def test_threads_begun_later_sleep_precisely_too() -> None:
    found: list[int] = []

    def ask() -> None:
        found.append(ctypes.CDLL(None).prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0))

    def run() -> None:
        ctypes.CDLL(None).prctl(
            PR_SET_TIMERSLACK, ctypes.c_ulong(ORDINARY_NS), 0, 0, 0
        )  # a runner's may be short
        ask()
        sleep_precisely()
        child = threading.Thread(target=ask)
        child.start()
        child.join()

    thread = threading.Thread(target=run)  # the process of the other tests stays as it is
    thread.start()
    thread.join()
    ordinary, precise = found
    assert precise <= 1_000 < ordinary == ORDINARY_NS

"""How late Linux may wake a thread that sleeps."""

from __future__ import annotations

import ctypes
import sys

_PR_SET_TIMERSLACK = 29
_SLACK_NS = 1_000


def sleep_precisely() -> None:
    """For this thread and those that it starts: by itself Linux adds up to 50 us to each sleep.

    Whoever looks for tokens sleeps as long between two looks. Does nothing on other systems.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, ctypes.c_ulong(_SLACK_NS), 0, 0, 0)

"""Django's own password hashing, a few at a time: each takes a third of a second of a core."""

from __future__ import annotations

import os
import threading
from typing import Any

from django.contrib.auth.hashers import PBKDF2PasswordHasher

AT_ONCE = max(1, (os.cpu_count() or 1) // 4)
"""Hashing keeps a core busy; streams need theirs."""
_SLOTS = threading.BoundedSemaphore(AT_ONCE)


class PatientHasher(PBKDF2PasswordHasher):
    """Many guesses at once wait for each other, and take no time from the streams."""

    def encode(self, *args: Any, **kwargs: Any) -> str:
        with _SLOTS:
            return super().encode(*args, **kwargs)

"""The browser that tests and screenshots drive."""

from __future__ import annotations

import os
import shutil

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has the same pages and no window around them, which costs more than most pages."""


def find_chromium() -> str | None:
    """CHROMIUM, or the first of `PROGRAMS` in PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, PROGRAMS)), None)

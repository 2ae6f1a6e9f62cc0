"""The database, from its URL: SQLite where the installation is one machine, else PostgreSQL."""

from __future__ import annotations

from typing import Any

import environ
from django.core.exceptions import ImproperlyConfigured

SQLITE = {
    # Web, Celery and the command line write at once: readers go on beside one writer (WAL), a second
    # writer waits, and says at BEGIN that it will write, since a late upgrade cannot wait.
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
}


def database(url: str) -> dict[str, Any]:
    """Django's settings for `url`. Raises ImproperlyConfigured, without the URL: it holds a password."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        return {**environ.Env.db_url_config(url), "OPTIONS": SQLITE}
    if scheme in ("postgres", "postgresql"):
        return {**environ.Env.db_url_config(url), "CONN_HEALTH_CHECKS": True}
    raise ImproperlyConfigured(
        f"DATABASE_URL begins with {scheme[:20]!r}; it must be postgres://USER:PASSWORD@HOST/NAME"
        " or sqlite:///PATH"
    )

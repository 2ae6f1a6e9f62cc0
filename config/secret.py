"""The secret key of an installation that was given none: made once, readable by its owner only."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


def kept_secret(path: Path) -> str:
    """The key in `path`; a missing one is made, with mode 600.

    Several processes may come here at once: each writes a file of its own and only one of them gets
    the name, so all return the same key. Raises ImproperlyConfigured if it can be neither read nor made.
    """
    try:
        if not path.exists():
            _make(path)
        key = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ImproperlyConfigured(
            f"the secret key {path} can be neither read nor made ({error.strerror}):"
            " set SECRET_KEY, or point MONOLANE_HOME at a folder that you may write to"
        ) from error
    if len(key) < 50:
        raise ImproperlyConfigured(
            f"the secret key in {path} has {len(key)} characters, it takes 50 or more: remove the file"
        )
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    mine = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(mine, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(64))
        os.link(mine, path)
    except FileExistsError:
        pass  # another process was first: its key counts
    finally:
        mine.unlink()

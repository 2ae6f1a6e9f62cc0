"""`manage.py` in a process of its own, as an operator runs it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def manage(environment: Mapping[str, str], *arguments: str, seconds: float = 120.0) -> str:
    """Runs it and returns what it says. Raises RuntimeError with that if it fails."""
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"manage.py {arguments[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout

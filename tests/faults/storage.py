"""How much one address can make the product keep, and what a full disk does to it."""

from __future__ import annotations

import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.pages import Socket, session_of, source_address
from tests.faults.product import Product
from tests.waiting import PATIENCE_S, wait_until

PROMPT = "\x01" * 43_000
"""JSON writes each of them as six characters: a row of 258 kB, were rows kept so."""
PROMPTS_A_SOCKET = 2
"""At once: `config.websocket.BYTES_AT_ONCE` is nearly three."""


@dataclass
class Flooded:
    asked: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    grown_bytes: int = 0
    seconds: float = 0.0


def flood(product: Product, seconds: float) -> Flooded:
    """One address, a fresh session at every refusal, the largest prompts, one after another.

    No socket sends so many that it is taken for a flood.
    """
    port, address, found = product.ports[0], source_address(1), Flooded()
    before, began = _size(product), time.monotonic()
    page = Socket(port, session_of(port, address), address)
    while time.monotonic() - began < seconds:
        found.asked += 1
        try:
            page.say(type="start", prompt=PROMPT, max_tokens=1)
            heard = _end(page)
        except OSError:
            heard = {"type": "closed"}
        found.answers[str(heard.get("code", heard["type"]))] += 1
        if heard["type"] != "done" or found.asked % PROMPTS_A_SOCKET == 0:
            page.connection.close()
            time.sleep(0.2 if heard["type"] != "done" else 0.0)
            with suppress(OSError):
                page = Socket(port, session_of(port, address), address)
    page.connection.close()
    found.grown_bytes, found.seconds = _size(product) - before, time.monotonic() - began
    return found


def _end(page: Socket) -> dict[str, Any]:
    while (heard := page.hear(PATIENCE_S)) is not None:
        if heard["type"] in ("done", "error"):
            return heard
    return {"type": "silence"}


def _size(product: Product) -> int:
    return sum(path.stat().st_size for path in product.home.glob("db.sqlite3*"))


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """`folder` on a disk of its own. Raises PermissionError where only an administrator may mount."""
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PermissionError(done.stderr)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass
class Filled:
    not_ready_s: float = 0.0
    page: int = 0
    refused: str = ""
    back_s: float = 0.0
    integrity: str = ""


def fill_and_empty(product: Product) -> Filled:
    """Fills the disk of the product's home to the last byte, and gives the room back."""
    found, port, address = Filled(), product.ports[0], source_address(2)
    page = Socket(port, session_of(port, address), address)
    ballast = product.home / "ballast"
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 16))
    began = time.monotonic()
    wait_until(lambda: product.get("/readyz")[0] == 503)
    found.not_ready_s = time.monotonic() - began
    found.page, _ = product.get("/")
    page.say(type="start", prompt="to", max_tokens=4)
    found.refused = str(_end(page).get("code"))
    ballast.unlink()
    began = time.monotonic()

    def works() -> bool:
        page.say(type="start", prompt="to", max_tokens=4)
        return _end(page)["type"] == "done"

    wait_until(works, every_s=0.5)
    found.back_s = time.monotonic() - began
    page.connection.close()
    with sqlite3.connect(product.database) as connection:
        [[found.integrity]] = connection.execute("pragma integrity_check").fetchall()
    return found

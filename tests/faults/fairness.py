"""One address with many sessions, and whether a visitor and a key from elsewhere are served beside it."""

from __future__ import annotations

import http.client
import json
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.faults.pages import Socket, session_of, source_address
from tests.faults.product import Product
from tests.waiting import PATIENCE_S, wait_until

CROWD, VISITOR, API = source_address(1), source_address(2), source_address(3)
TOKENS = 32_000


@dataclass
class Fairness:
    answers: Counter[str] = field(default_factory=Counter)
    """How the sessions of the one address were answered, by what was said."""
    in_queue: int = 0
    """Their requests in the inbox, in hand and held outside."""
    workers: int = 0
    visitor_place: int = 0
    visitor_s: float = 0.0
    key_s: float = 0.0


def run(product: Product, sessions: int, key: str) -> Fairness:
    found = Fairness(workers=sum(name.startswith("paced") for name in product.services))
    port = product.ports[0]
    with ExitStack() as opened:
        sockets = []
        for _ in range(sessions):
            try:
                sockets.append(Socket(port, session_of(port, CROWD), CROWD))
                opened.callback(sockets[-1].connection.close)
            except (OSError, http.client.HTTPException):
                found.answers["not connected"] += 1
        for socket in sockets:
            socket.say(type="start", prompt="to", max_tokens=TOKENS)
        taken = []
        for socket in sockets:
            heard = _first(socket)
            if heard["type"] == "error":
                found.answers[heard["code"]] += 1
            else:
                found.answers[heard["type"]] += 1
                taken.append(socket)
        with product.redis() as raw:
            found.in_queue = raw.hlen("ml:entries")
        _call(product, key, found)
        _visit(port, found)
        for socket in taken:
            with suppress(OSError):
                socket.say(type="stop")
        for socket in taken:  # who was refused hears of no end
            with suppress(OSError):
                while (heard := socket.hear(2.0) or {"type": "done"})["type"] not in ("done", "error"):
                    pass
    return found


def _visit(port: int, found: Fairness) -> None:
    socket = Socket(port, session_of(port, VISITOR), VISITOR)
    began = time.monotonic()
    socket.say(type="start", prompt="to", max_tokens=8)
    heard = _first(socket)
    assert heard["type"] == "queued", heard
    found.visitor_s, found.visitor_place = time.monotonic() - began, int(heard["position"])
    socket.say(type="stop")
    socket.connection.close()


def _call(product: Product, key: str, found: Fairness) -> None:
    """Until it is in the queue: the answer's head comes with the first event."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    body = json.dumps({"model": "words", "prompt": "to", "max_tokens": 8, "stream": True})
    port = product.ports[0]
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(API, 0))
    with product.redis() as raw:
        before, began = raw.hlen("ml:entries"), time.monotonic()
        connection.request("POST", "/v1/completions", body, headers)
        wait_until(lambda: raw.hlen("ml:entries") > before)
    found.key_s = time.monotonic() - began
    connection.close()


def _first(socket: Socket) -> dict[str, Any]:
    """The first frame that is about a generation."""
    while (heard := socket.hear(PATIENCE_S)) is not None:
        if heard["type"] != "status":
            return heard
    return {"type": "silence"}

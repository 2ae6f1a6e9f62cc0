"""Visitors that never give up: a page that reconnects and resumes, a client of /v1 that asks again."""

from __future__ import annotations

import http.client
import itertools
import json
import select
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.config.rawsocket import RawSocket, frame
from tests.faults.product import Product
from tests.waiting import PATIENCE_S

SILENCE_S = 150.0
"""A visitor that hears neither a token nor an end for so long has lost its generation."""
ACK_EVERY = 64
PAUSE_S = 0.3
_TEXT, _PING, _PONG = 1, 9, 10


@dataclass
class Tally:
    """What became of the generations that visitors asked for. Threads share one."""

    whole: int = 0
    """Ended with the very text that it should have."""
    again: Counter[str] = field(default_factory=Counter)
    """Ended with an error that says to send it again, by code."""
    refused: Counter[str] = field(default_factory=Counter)
    """Ended with another error, by code."""
    later: Counter[str] = field(default_factory=Counter)
    """Not begun, and asked for again by the same visitor, by code."""
    wrong: list[str] = field(default_factory=list)
    """Shown as a success with tokens that are lost, doubled or others; or never ended."""
    reconnected: int = 0
    longest_gap_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def asked(self) -> int:
        return self.whole + self.again.total() + self.refused.total() + len(self.wrong)

    def note(self, **changes: Any) -> None:
        with self._lock:
            self.whole += changes.get("whole", 0)
            self.reconnected += changes.get("reconnected", 0)
            self.again.update(changes.get("again", ()))
            self.refused.update(changes.get("refused", ()))
            self.later.update(changes.get("later", ()))
            self.wrong += changes.get("wrong", ())
            self.longest_gap_s = max(self.longest_gap_s, changes.get("gap_s", 0.0))


class Socket(RawSocket):
    """Speaks JSON in text frames, answers pings."""

    def __init__(self, port: int, cookie: str = "", source: str = "127.0.0.1") -> None:
        headers = f"Cookie: {cookie}\r\n" if cookie else ""
        super().__init__(port, "/ws/playground/", source=source, headers=headers)
        if self.status != 101:
            self.connection.close()
            raise ConnectionError(f"the handshake was answered with {self.status}")

    def say(self, **message: Any) -> None:
        self.connection.sendall(frame(json.dumps(message).encode(), opcode=_TEXT))

    def hear(self, timeout: float) -> dict[str, Any] | None:
        """The next frame; None after `timeout`. Raises ConnectionError once the socket is gone."""
        while self._unread or select.select([self.connection], [], [], timeout)[0]:
            self.connection.settimeout(PATIENCE_S)
            opcode, payload = self._next()
            if opcode in (-1, 8):
                raise ConnectionError("the socket was closed")
            if opcode == _PING:
                self.connection.sendall(frame(payload, opcode=_PONG))
            elif opcode == _TEXT:
                message: dict[str, Any] = json.loads(payload)
                return message
        return None


def session_of(port: int, source: str = "127.0.0.1") -> str:
    """The cookies of a fresh visitor."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S, source_address=(source, 0))
    try:
        connection.request("GET", "/")
        answer = connection.getresponse()
        answer.read()
        cookies = [each.split(";")[0] for each in answer.headers.get_all("Set-Cookie") or ()]
        return "; ".join(cookies)
    finally:
        connection.close()


class Visitor:
    """One browser session: a generation after another, each to its end, whatever breaks meanwhile."""

    def __init__(self, ports: Sequence[int], tally: Tally, source: str = "127.0.0.1") -> None:
        self._ports = itertools.cycle(ports)
        self._tally = tally
        self._source = source
        self._socket: Socket | None = None
        self._cookie = ""

    def run(self, requests: Iterator[tuple[Mapping[str, Any], str]], stopping: threading.Event) -> None:
        """Each request with the text that it must become."""
        for request, expected in requests:
            self.ask(request, expected, stopping)
            if stopping.is_set():
                break
        self._hang_up()

    def ask(self, request: Mapping[str, Any], expected: str, stopping: threading.Event) -> None:
        """One generation, to its end."""
        run, heard = _Run(), time.monotonic()
        while True:
            if time.monotonic() - heard > SILENCE_S:
                state = f"{run.generation or 'never queued'} after {run.tokens} tokens"
                self._tally.note(wrong=[f"nothing for {SILENCE_S:.0f} s: {state}"])
                self._hang_up()
                return
            try:
                message = self._next(request, run)
            except (OSError, http.client.HTTPException, ValueError):
                self._hang_up()
                self._tally.note(reconnected=1)
                time.sleep(PAUSE_S)
                continue
            if message is None:
                continue
            if message["type"] in ("tokens", "done"):
                self._tally.note(gap_s=time.monotonic() - heard if run.tokens else 0.0)
                heard = time.monotonic()
            if run.take(message):
                self._settle(run, expected)
                if run.error is None or not run.waits:
                    return
                run, heard = _Run(), max(heard, time.monotonic() - SILENCE_S / 2)
                time.sleep(PAUSE_S)
                if stopping.is_set():
                    return

    def _next(self, request: Mapping[str, Any], run: _Run) -> dict[str, Any] | None:
        if self._socket is None:
            port = next(self._ports)
            self._cookie = self._cookie or session_of(port, self._source)
            self._socket = Socket(port, self._cookie, self._source)
            if run.generation:
                self._socket.say(type="resume", generation=run.generation, after=run.tokens)
            else:
                self._socket.say(type="start", **request)
            run.said = True
        elif not run.said:
            self._socket.say(type="start", **request)
            run.said = True
        message = self._socket.hear(1.0)
        if run.tokens - run.acked >= ACK_EVERY:
            run.acked = run.tokens
            self._socket.say(type="ack", seq=run.acked)
        if run.rewound:  # the page asks for all of it again
            run.rewound = False
            self._hang_up()
        return message

    def _settle(self, run: _Run, expected: str) -> None:
        if run.error is not None:
            code = str(run.error["code"])
            kind = "later" if run.waits else "again" if run.may_try_again else "refused"
            self._tally.note(**{kind: [code]})
        elif run.shown == expected:
            self._tally.note(whole=1)
        else:
            place = next((i for i, (a, b) in enumerate(zip(run.shown, expected, strict=False)) if a != b), -1)
            sizes = f"{len(run.shown)} characters of {len(expected)}, the first other one at {place}"
            self._tally.note(wrong=[f"{run.generation}: {sizes}, {run.end}"])

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.connection.close()
            self._socket = None


_TRY_LATER = ("no_worker", "unavailable", "queue_full", "too_many_waiting", "rate_limited", "busy")
_ASK_ANEW = ("unknown_generation", "expired")


class _Run:
    """What a page has of one generation."""

    def __init__(self) -> None:
        self.generation = ""
        self.said = False
        self.tokens = self.acked = 0
        self.parts: list[str] = []
        self.error: dict[str, Any] | None = None
        self.end = ""
        self.rewound = False

    @property
    def shown(self) -> str:
        return "".join(self.parts)

    @property
    def may_try_again(self) -> bool:
        error = self.error or {}
        return bool(error.get("retryable")) or error.get("code") in _ASK_ANEW

    @property
    def waits(self) -> bool:
        """Whether it was not begun, so that the same visitor asks again."""
        return bool(self.error) and (self.error or {}).get("code") in _TRY_LATER

    def take(self, message: Mapping[str, Any]) -> bool:
        """True if that was its end."""
        kind = message["type"]
        if message.get("generation") not in (None, self.generation) and kind != "queued":
            return False
        if kind == "queued":
            self.generation = str(message["generation"])
        elif kind == "tokens":
            self._add(message)
        elif kind == "error":
            self.error = dict(message)
            return True
        elif kind == "done":
            self.end = f"{message['finish_reason']} at {self.tokens} tokens"
            self.parts.append(str(message["text"]))
            return True
        return False

    def _add(self, message: Mapping[str, Any]) -> None:
        end = int(message["seq"]) + int(message["n"])
        if end <= self.tokens:
            return
        if int(message["seq"]) != self.tokens:  # as the page: forget the text, ask for all of it
            self.tokens, self.acked, self.parts, self.rewound = 0, 0, [], True
            return
        self.tokens = end
        self.parts.append(str(message["text"]))


class ApiClient:
    """Streams completions from /v1. A connection that breaks is an end that nobody takes for a success."""

    def __init__(self, ports: Sequence[int], tally: Tally, source: str = "127.0.0.1", key: str = "") -> None:
        self._ports = itertools.cycle(ports)
        self._tally = tally
        self._source = source
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def run(self, requests: Iterator[tuple[Mapping[str, Any], str]], stopping: threading.Event) -> None:
        for body, expected in requests:
            self.ask(body, expected)
            if stopping.is_set():
                return

    def ask(self, body: Mapping[str, Any], expected: str) -> None:
        connection = http.client.HTTPConnection(
            "127.0.0.1", next(self._ports), timeout=SILENCE_S, source_address=(self._source, 0)
        )
        parts: list[str] = []
        begun = False
        try:
            connection.request("POST", "/v1/completions", json.dumps({**body, "stream": True}), self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                code = json.loads(answer.read())["error"]["code"]
                self._tally.note(later=[f"v1 {code}"])
                time.sleep(PAUSE_S)
                return
            begun = True
            end = _read_events(answer, parts)
        except TimeoutError:
            self._tally.note(wrong=[f"/v1 said nothing for {SILENCE_S:.0f} s"])
            return
        except (OSError, http.client.HTTPException, ValueError):
            end = "cut off"
            time.sleep(PAUSE_S)
            if not begun:
                self._tally.note(later=["v1 not reached"])
                return
        finally:
            connection.close()
        text = "".join(parts)
        if end == "[DONE]" and text == expected:
            self._tally.note(whole=1)
        elif end != "[DONE]" and expected.startswith(text):
            self._tally.note(again=[f"v1 {end}"])
        else:
            self._tally.note(wrong=[f"/v1: {len(text)} characters of {len(expected)}, {end}"])


def _read_events(answer: http.client.HTTPResponse, parts: list[str]) -> str:
    """Fills `parts` with the text that comes; returns how the stream ended."""
    for line in iter(answer.readline, b""):
        if not line.startswith(b"data: "):
            continue
        data = line[6:].strip()
        if data == b"[DONE]":
            return "[DONE]"
        event = json.loads(data)
        if "error" in event:
            return str(event["error"]["code"])
        parts += [choice["text"] for choice in event["choices"]]
    return "cut off"


def text_of(product: Product, tokens: int) -> str:
    """What so many tokens of the paced engine say when nothing breaks, from /v1."""
    body = json.dumps({"model": "words", "prompt": "to", "max_tokens": tokens}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{product.ports[0]}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:  # noqa: S310
        return str(json.load(answer)["choices"][0]["text"])


def source_address(number: int) -> str:
    """An address of this machine that stands for another visitor's."""
    return f"127.0.{10 + number // 250}.{1 + number % 250}"

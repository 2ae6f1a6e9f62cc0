"""A server in the browser test's hands: it answers every run with what the test says."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import BrowserContext, WebSocketRoute

WORKER = {
    "name": "scripted", "model": "scripted", "backend": "none", "devices": [], "state": "idle", "chat": True,
    "infill": True, "context": 4096, "parallelism": "none", "lanes": 1,
    "sync": "", "link": "", "last_tok_s": 0.0,
}  # fmt: skip
TIMINGS = {
    "queue_ms": 0, "prefill_ms": 1, "ttft_ms": 1, "decode_ms": 10, "decode_tok_s": 100, "prompt_tokens": 1,
    "completion_tokens": 2,
}  # fmt: skip


@dataclass
class ScriptedServer:
    """`server(text)` makes every run answer with that text; `server(error=...)` with that error.

    With `endless`, a run goes on after its text until it is stopped. Must be asked for before the page.
    """

    worker: dict[str, Any] = field(default_factory=lambda: dict(WORKER))
    asked: list[dict[str, Any]] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)
    """The types of frames that were sent, in order, acknowledgements aside."""
    _text: str = ""
    _error: dict[str, Any] | None = None
    _endless: bool = False
    _finish: str = "stop"
    _gone: bool = False
    _lines: list[WebSocketRoute] = field(default_factory=list)
    _go_on: Callable[[str], None] = print
    _ids: itertools.count[int] = field(default_factory=itertools.count)

    def __call__(
        self,
        text: str = "",
        *,
        error: dict[str, Any] | None = None,
        endless: bool = False,
        finish: str = "stop",
    ) -> list[dict[str, Any]]:
        """Returns the start frames that have been, and will be, asked for."""
        self._text, self._error, self._endless, self._finish = text, error, endless, finish
        return self.asked

    def serve(self, context: BrowserContext) -> None:
        context.route_web_socket("**/ws/playground/", self._speak)

    def hang_up(self) -> None:
        """Cuts the page's connections, and every one that it tries from now on."""
        self._gone = True
        for line in self._lines:
            line.close(code=3001)

    def more(self, text: str) -> None:
        """The endless run in hand goes on."""
        self._go_on(text)

    def _speak(self, route: WebSocketRoute) -> None:
        if self._gone:
            route.close(code=3001)
            return
        self._lines.append(route)
        generation = ""
        told = 0

        def go_on(text: str) -> None:
            nonlocal told
            say(type="tokens", seq=told, n=1, text=text, t_us=told * 10_000)
            told += 1

        def say(**frame: Any) -> None:
            route.send(json.dumps({"generation": generation, **frame}))

        def end(reason: str) -> None:
            say(type="done", finish_reason=reason, text="", timings=TIMINGS)

        def hear(message: str | bytes) -> None:
            nonlocal generation, told
            frame = json.loads(message)
            if frame["type"] == "count":
                route.send(json.dumps({"type": "count", "tokens": len(message) // 4, "context": 4096}))
                return
            if frame["type"] != "ack":
                self.heard.append(frame["type"])
            if frame["type"] == "stop":
                end("cancelled")
            if frame["type"] != "start":
                return
            self.asked.append(frame)
            if self._error:
                route.send(json.dumps({"type": "error", **self._error}))
                return
            generation = f"{next(self._ids):032x}"
            say(type="queued", position=0, eta_s=0.0)
            say(
                type="started", model="scripted", backend="none", worker="s", prompt_tokens=1, queue_ms=0,
                seed=1,
            )  # fmt: skip
            told, self._go_on = 0, go_on
            for text in (self._text[:1], self._text[1:]):
                go_on(text)
            if not self._endless:
                end(self._finish)

        route.on_message(hear)
        route.send(json.dumps({"type": "status", "workers": [self.worker]}))

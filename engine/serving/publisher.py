"""From the engine's thread to Redis, on a thread of its own: a slow Redis never holds up decoding.

Tokens are gathered into frames of 8 to 16 ms (one display frame) or 2 kB; the first token goes at once.
Frames are numbered and appended by a script that checks who owns the request, so appending again after
a lost reply, a restart of Redis or a takeover neither loses nor doubles one; the same round trip says
whether the request was cancelled.
"""

from __future__ import annotations

import enum
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, cast

from redis.exceptions import RedisError

from engine.serving import scripts
from engine.serving.connection import LONGEST_ASK_S, connect
from engine.serving.kept_connections import KeptConnection
from engine.serving.messages import (
    Frame,
    Started,
    Tokens,
    cancel_key,
    decode_frame,
    encode_frame,
    out_key,
    owner_key,
)

log = logging.getLogger(__name__)

FRAME_MIN_S = 0.008
FRAME_MAX_S = 0.016
FRAME_BYTES = 2048
_TRIPS_A_FRAME = 4
"""A Redis that takes long to answer gets longer frames: this many round trips each, within the limits."""
LOOK_S = 0.05
"""How often a request without new tokens (in prefill, say) asks whether it was cancelled."""
BEGIN_S = 0.003
"""So long the frame that says who began waits for the first tokens, which a short prompt soon has: sent by
itself it would keep the readers, and this process's engine thread, busy just as those come."""
_RETRY_S = (0.05, 1.0)
_LEAVE_S = 0.1


@dataclass(frozen=True, slots=True)
class _Batch:
    """Tokens that the engine's thread got at once."""

    ids: tuple[int, ...]
    text: str
    t_us: int
    ttft_ms: float
    at: float
    """When they were put in, by time.monotonic()."""

    @property
    def size(self) -> int:
        """About how many bytes it adds to a frame."""
        return len(self.text) + 6 * len(self.ids)


@dataclass(frozen=True, slots=True)
class _Plain:
    """A frame that goes as it is; with a service time it is the last."""

    frame: Frame
    service_ms: float | None = None


class _End(enum.Enum):
    ABANDON = "no more will come from this worker"


class Output:
    """One request's way out. The engine's thread puts frames in; the publisher's thread sends them.

    `begin` is called with the first that is put in, for the publisher to begin: sooner it would only be in
    the engine's way. Two cores that the engine's threads are about to take wake it late (by 2 ms at the
    median), so it is told who began while they are free.
    """

    def __init__(
        self, request_id: str, sent: list[str], ttft_ms: float | None, begin: Callable[[Output], None]
    ) -> None:
        self.request_id = request_id
        self.sent = sent
        """The frames in the stream, encoded: frame n is sent[n - 1]."""
        self.history = tuple(decode_frame({"json": raw}) for raw in sent)
        """What other workers published before, in order."""
        self.ttft_ms = ttft_ms
        """From creation to the first token, if an earlier worker got so far."""
        self.produced = 0
        """Tokens that this worker has put in."""
        self.publish_ms = 0.0
        """From the first token's being put in to Redis having it; 0 before that."""
        self.ended = False
        """Whether the last frame has been put in."""
        self.cancelled = threading.Event()
        self.lost = threading.Event()
        """Another worker has the request: whatever this one still says is dropped."""
        self.items: queue.SimpleQueue[_Batch | _Plain | _End] = queue.SimpleQueue()
        self.hurry = threading.Event()
        self.settled = threading.Event()
        self._opened_at = time.monotonic()
        self._begin: Callable[[Output], None] | None = begin

    def frame(self, frame: Frame) -> None:
        """Sends a frame that is neither tokens nor the last, at once (Started: within BEGIN_S)."""
        self._put(_Plain(frame), hurry=True)

    def tokens(self, ids: Sequence[int], text: str, t_us: int, ttft_ms: float) -> None:
        """Adds tokens to the next frame. `ttft_ms` is that of the generation."""
        self.produced += len(ids)
        batch = _Batch(tuple(ids), text, t_us, ttft_ms, time.monotonic())
        self._put(batch, hurry=batch.size >= FRAME_BYTES)

    def end(self, frame: Frame) -> None:
        """Sends the last frame, and how long this worker has had the request."""
        self.ended = True
        self._put(_Plain(frame, service_ms=(time.monotonic() - self._opened_at) * 1e3), hurry=True)

    def finish(self, leave: Callable[[], bool] = lambda: False) -> bool:
        """Waits until the last frame is out; False if the request is another worker's.

        So it is if `leave` says, while Redis is away, that there is no more time to wait: whoever has the
        request next ends it.
        """
        while not self.settled.wait(_LEAVE_S):
            if leave():
                return False
        return not self.lost.is_set()

    def abandon(self, timeout: float) -> None:
        """Sends what was put in so far and waits for it up to `timeout` seconds; the request does not end."""
        self._put(_End.ABANDON, hurry=True)
        self.settled.wait(timeout)

    def _put(self, item: _Batch | _Plain | _End, *, hurry: bool) -> None:
        self.items.put(item)
        if hurry:
            self.hurry.set()
        if (begin := self._begin) is not None:
            self._begin = None
            begin(self)


class Publisher:
    """Sends one Output at a time. `token` is the process's name in owner keys (see inbox.Inbox)."""

    def __init__(self, redis_url: str, token: str) -> None:
        self._redis = connect(redis_url)
        self._token = token
        self._append = self._redis.register_script(scripts.APPEND)
        self._connection = KeptConnection(self._redis)
        self._outputs: queue.SimpleQueue[Output | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def open(self, request_id: str, *, continued: bool = True) -> Output:
        """The way out for a request in this worker's hands; `continued` if some of it is published.

        Raises RedisError, or RequestError if what was published before cannot be read.
        """
        if not continued:
            return Output(request_id, [], None, self._outputs.put)
        entries = cast("list[tuple[str, dict[str, str]]]", self._redis.xrange(out_key(request_id)))
        ttft = cast("str | None", self._redis.hget(owner_key(request_id), "ttft_ms"))
        sent = [fields["json"] for _, fields in entries]
        return Output(request_id, sent, float(ttft) if ttft else None, self._outputs.put)

    def give_up(self) -> None:
        """Has the thread end, whatever is not out yet, once what it has asked Redis is answered or failed."""
        self._closing.set()
        self._outputs.put(None)

    def close(self) -> None:
        """Gives up and waits for the thread's end."""
        self.give_up()
        self._thread.join(timeout=LONGEST_ASK_S)
        self._redis.close()

    @property
    def closing(self) -> bool:
        return self._closing.is_set()

    def append(self, output: Output, first: int, frames: Sequence[str], ttft: str, service: str) -> _Reply:
        """Runs scripts.APPEND until Redis answers; as if fenced once the publisher is being closed."""
        keys = [owner_key(output.request_id), out_key(output.request_id), cancel_key(output.request_id)]
        args: list[str | int] = [self._token, output.request_id, first, ttft, service, *frames]
        pause, longest = _RETRY_S
        while True:
            try:
                return _Reply(*self._connection.run(self._append, keys, args))
            except (RedisError, OSError) as error:
                log.warning("Redis did not take a frame of %s: %s", output.request_id, error)
            if self._closing.wait(pause):
                return _Reply("fenced", 0, 0)
            pause = min(2 * pause, longest)

    def _run(self) -> None:
        while (output := self._outputs.get()) is not None:
            try:
                _Sender(self, output).run()
            except Exception:
                log.exception("publishing %s failed", output.request_id)
                output.lost.set()
            finally:
                output.settled.set()


class _Reply(NamedTuple):
    """What scripts.APPEND says."""

    verdict: str
    last: int
    cancelled: int


class _Sender:
    """Sends one Output to its end, on the publisher's thread."""

    def __init__(self, publisher: Publisher, output: Output) -> None:
        self._publisher = publisher
        self._output = output
        self._seq = sum(len(frame.ids) for frame in output.history if isinstance(frame, Tokens))
        self._batches: list[_Batch] = []
        self._frames: list[str] = []
        self._ttft = ""
        self._service = ""
        self._ended = False
        self._first_at: float | None = None
        """When the first tokens of this worker were put in."""
        self._sent_at = 0.0
        self._interval = FRAME_MIN_S

    def run(self) -> None:
        while not self._ended and not self._publisher.closing:
            self._gather()
            if not self._send():
                self._output.lost.set()
                return

    def _gather(self) -> None:
        """Waits until there is something to send whose time has come, or until it is time to look."""
        with suppress(queue.Empty):
            item = self._output.items.get(timeout=LOOK_S)
            self._add(item)
            if isinstance(item, _Plain) and isinstance(item.frame, Started):
                self._add(self._output.items.get(timeout=BEGIN_S))
        self._drain()
        if self._batches and not self._urgent():
            # Waiting for the hurry flag instead of the next token wakes this thread once a frame.
            self._output.hurry.wait(max(0.0, self._sent_at + self._interval - time.monotonic()))
            self._drain()

    def _drain(self) -> None:
        self._output.hurry.clear()
        with suppress(queue.Empty):
            while True:
                self._add(self._output.items.get_nowait())

    def _urgent(self) -> bool:
        size = sum(batch.size for batch in self._batches)
        return self._ended or bool(self._frames) or self._first_at is None or size >= FRAME_BYTES

    def _add(self, item: _Batch | _Plain | _End) -> None:
        if isinstance(item, _Batch):
            self._batches.append(item)
            return
        self._seal()
        if isinstance(item, _Plain):
            self._frames.append(encode_frame(item.frame)["json"])
            if item.service_ms is not None:
                self._service = f"{item.service_ms:.1f}"
        self._ended = isinstance(item, _End) or bool(self._service)

    def _seal(self) -> None:
        """Turns the tokens gathered so far into a frame."""
        if not self._batches:
            return
        ids = tuple(token for batch in self._batches for token in batch.ids)
        text = "".join(batch.text for batch in self._batches)
        self._frames.append(encode_frame(Tokens(self._seq, ids, text, self._batches[-1].t_us))["json"])
        self._ttft = f"{self._batches[0].ttft_ms:.3f}"
        self._seq += len(ids)
        if self._first_at is None:
            self._first_at = self._batches[0].at
        self._batches = []

    def _send(self) -> bool:
        """Appends what is ready and looks for a cancellation. False if the request is another's."""
        self._seal()
        self._sent_at = time.monotonic()
        sent = self._output.sent
        sent += self._frames
        first, self._frames = len(sent) - len(self._frames) + 1, []
        reply = self._append(first)
        while reply.verdict == "gap":  # Redis came back without some frames that it had taken
            reply = self._append(reply.last + 1)
        if reply.cancelled:
            self._output.cancelled.set()
        if self._first_at is not None and not self._output.publish_ms:
            self._output.publish_ms = (time.monotonic() - self._first_at) * 1e3
        trip = time.monotonic() - self._sent_at
        self._interval = min(FRAME_MAX_S, max(FRAME_MIN_S, _TRIPS_A_FRAME * trip))
        return reply.verdict == "ok"

    def _append(self, first: int) -> _Reply:
        frames = self._output.sent[first - 1 :]
        return self._publisher.append(self._output, first, frames, self._ttft, self._service)

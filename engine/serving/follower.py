"""Following a request's output: how far the reader is, and whether anything can still come."""

from __future__ import annotations

import time

from engine import replies
from engine.serving.connection import BLOCK_S
from engine.serving.errors import QueueUnavailable
from engine.serving.messages import EXPIRES_S, Failed, frame_number
from engine.serving.reading import FROM_START, Rewritten, StreamFrame, TokenCounter

OUTAGE_S = 30.0
"""How long a reader of frames waits for a Redis that went away before it gives up."""
RECOVERY_S = 10.0
"""How long Redis may know nothing of a request that it knew before: its worker publishes it again."""
GONE_S = 10.0
"""How long the one worker that may take a request can be without a sign of life before the request ends."""


class StreamFollower:
    """What one reader knows of one request: a state machine, whose caller does the input and output."""

    def __init__(self, request_id: str, after: str, *, submitted: bool = False) -> None:
        self.after = after
        self.over = False
        self.block_s = BLOCK_S if submitted else 0.0
        """The first look does not wait, so that an unknown request is refused at once."""
        self._id = request_id
        self._counter = TokenCounter(whole=after == FROM_START)
        self.rewound = False
        """Whether `after` went back to the stream's start: a reader that runs ahead begins anew."""
        self._known = submitted
        self._has_read = False
        self._lost_at: float | None = None
        self._away_at: float | None = None
        self._gone_at: float | None = None

    def take(self, frames: list[StreamFrame]) -> list[StreamFrame]:
        """The new frames among `frames`. None at all is no sign that Redis answers: `idle` is."""
        self.rewound = False
        if frames:
            self._away_at = self._lost_at = None
            self._known = self._has_read = True
            self.after = frames[-1].id
            self.over = frames[-1].final
        try:
            return self._counter.fresh(frames)
        except Rewritten as rewritten:
            return [*rewritten.before, *self._read_again()]

    def _read_again(self) -> list[StreamFrame]:
        """Redis lost a part of the output: what it has now is read from the start, once."""
        try:
            self._counter.read_again()
        except Rewritten:
            self.over = True
            return [StreamFrame(self.after, _incomplete(self._id))]
        self.after, self.over, self.rewound = FROM_START, False, True
        return []

    def idle(self, standing: tuple[bool, StreamFrame | None]) -> list[StreamFrame]:
        """Nothing came: go on waiting (no frame), or end, with a Failed frame if the request is lost."""
        known, newest = standing
        self._away_at = None
        self.block_s = BLOCK_S
        now = time.monotonic()
        if known:
            self._known, self._lost_at = True, None
            return self._end_if_final(newest)
        if self._known:
            self._lost_at = self._lost_at or now
            if now - self._lost_at < RECOVERY_S:
                return []
        self.over = True
        return [StreamFrame(self.after, _lost(self._id, self._known))]

    def _end_if_final(self, newest: StreamFrame | None) -> list[StreamFrame]:
        """Ends a reader that came back after the last frame. One that missed that frame reads again."""
        if newest is None or not newest.final or frame_number(newest.id) > frame_number(self.after):
            return []
        if self._has_read or frame_number(newest.id) < frame_number(self.after):
            return self._read_again()
        self.over = True
        return []

    def gone(self, gone: bool) -> None:
        """Whether the one worker that may take the request shows no sign of life now."""
        self._gone_at = (self._gone_at or time.monotonic()) if gone else None

    @property
    def deserted(self) -> bool:
        """Whether it has shown none for so long that the request ends."""
        return self._gone_at is not None and time.monotonic() - self._gone_at >= GONE_S

    def outage(self) -> None:
        """Redis did not answer. Raises QueueUnavailable (again) once that has lasted OUTAGE_S."""
        now = time.monotonic()
        self._away_at = self._away_at or now
        if now - self._away_at >= OUTAGE_S:
            raise QueueUnavailable(f"Redis has not answered for {OUTAGE_S:.0f} s; check that it runs")


def _lost(request_id: str, was_known: bool) -> Failed:
    if was_known:
        return Failed.of(
            replies.WORKER_LOST, f"Redis lost request {request_id} before it ended; send it again"
        )
    return Failed.of(
        replies.EXPIRED,
        f"nothing is known of request {request_id}; output is kept for {EXPIRES_S // 60} minutes after its"
        " end: send the request again",
    )


def _incomplete(request_id: str) -> Failed:
    message = f"Redis lost a part of the output of request {request_id}; send it again"
    return Failed.of(replies.WORKER_LOST, message)


def desertion() -> Failed:
    """The end of a request whose one worker does not come back."""
    message = (
        f"the one worker that could answer this request has been gone for {GONE_S:.0f} s; send it again, to"
        " another worker if it named that one"
    )
    return Failed.of(replies.WORKER_LOST, message)

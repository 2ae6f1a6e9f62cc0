"""Back-pressure on a socket: how much a page may have been sent and not yet shown.

The server's own send never waits (daphne buffers without bound), so the page acknowledges what it has
shown and the reader of Redis pauses while too much is outstanding. Redis holds the rest meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

MAX_FRAMES = 64
MAX_BYTES = 256 * 1024
PATIENCE_S = 20.0
"""How long the oldest frame may stay unacknowledged before the page is given up."""


class AckWindow:
    """The frames that a page has not acknowledged. Counts tokens, as the protocol does."""

    def __init__(
        self,
        max_frames: int = MAX_FRAMES,
        max_bytes: int = MAX_BYTES,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._max_frames = max_frames
        self._max_bytes = max_bytes
        self._patience_s = patience_s
        self._clock = clock
        self._unacked: deque[tuple[int, int]] = deque()  # (tokens after the frame, its bytes)
        self._bytes = 0
        self._since = 0.0

    def sent(self, end: int, size: int) -> None:
        """A frame of `size` bytes went out; with it the page has `end` tokens."""
        if not self._unacked:
            self._since = self._clock()
        self._unacked.append((end, size))
        self._bytes += size

    def acked(self, end: int) -> None:
        """The page has shown `end` tokens. One that acknowledges what it was never sent is believed."""
        before = len(self._unacked)
        while self._unacked and self._unacked[0][0] <= end:
            self._bytes -= self._unacked.popleft()[1]
        if len(self._unacked) != before:
            self._since = self._clock()

    @property
    def full(self) -> bool:
        return len(self._unacked) >= self._max_frames or self._bytes >= self._max_bytes

    @property
    def out_of_patience(self) -> bool:
        """Whether something has been outstanding for so long that nobody seems to read."""
        return bool(self._unacked) and self._clock() - self._since >= self._patience_s

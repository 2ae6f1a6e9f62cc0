"""Reading a generation's output stream: entries in, frames out, each token once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from engine.serving.messages import FINAL, Done, Frame, Tokens, decode_frame

FROM_START = "0-0"


class StreamFrame(NamedTuple):
    """A frame and its id in the output stream; a reader that comes back asks for what follows the id."""

    id: str
    frame: Frame

    @property
    def final(self) -> bool:
        return isinstance(self.frame, FINAL)


Entries = Sequence[tuple[str, Mapping[str, str]]]


def streams_of(reply: Any) -> Iterable[tuple[str, Entries]]:
    """Each stream in the reply to an XREAD, with its entries. What form the reply has depends on redis-py."""
    return reply.items() if isinstance(reply, Mapping) else (reply or ())


def streams_of_raw(reply: Any) -> Iterable[tuple[str, Entries]]:
    """The same of a reply as Redis gives it, where an entry's fields are a list of names and values."""
    streams: Iterable[tuple[str, Any]] = streams_of(reply)
    for key, entries in streams:
        yield key, [(entry, dict(zip(said[::2], said[1::2], strict=True))) for entry, said in entries]


def frames_of(entries: Entries) -> list[StreamFrame]:
    """Raises RequestError if an entry is no frame."""
    return [StreamFrame(entry_id, decode_frame(fields)) for entry_id, fields in entries]


def parse_entries(reply: Any) -> list[StreamFrame]:
    """The frames in the reply to an XREAD of one stream. Raises RequestError if an entry is no frame."""
    return [frame for _, entries in streams_of(reply) for frame in frames_of(entries)]


class Rewritten(Exception):
    """The stream does not go on where the reader is: Redis lost a part of it that the reader had seen."""

    def __init__(self, before: Sequence[StreamFrame] = ()) -> None:
        super().__init__("a part of the output is gone")
        self.before = list(before)
        """The new frames before that place."""


class TokenCounter:
    """Passes on each token once, in order. `whole` says whether the reader sees the stream from its start.

    A frame that leaves tokens out, or has some that were passed on beside others, cannot be shown, nor an end
    that counts more tokens than came: it raises Rewritten. Then the stream is read again from its start
    (once), and what goes beyond the tokens that the reader has is passed on, if the text before is the same.
    """

    def __init__(self, *, whole: bool = True) -> None:
        self.tokens = 0
        """How many tokens of the generation the reader has."""
        self._whole = whole
        self._began = whole
        self._text: list[str] = []
        self._again: _SecondReading | None = None

    def fresh(self, frames: Iterable[StreamFrame]) -> list[StreamFrame]:
        """The frames with something new. Raises Rewritten."""
        found: list[StreamFrame] = []
        for one in frames:
            try:
                frame = self._next(one.frame)
            except Rewritten:
                raise Rewritten(found) from None
            if frame is not None:
                found.append(StreamFrame(one.id, frame))
        return found

    def read_again(self) -> None:
        """The next frames are those from the stream's start. Raises Rewritten where that cannot help."""
        if self._again is not None or not self._whole:
            raise Rewritten
        self._again = _SecondReading(self.tokens, "".join(self._text))

    def _next(self, frame: Frame) -> Frame | None:
        if self._again is not None and not self._again.over:
            frame_beyond = self._again.beyond(frame)
            if frame_beyond is None:
                return None
            frame = frame_beyond
        if isinstance(frame, Done) and self._began and frame.timings.completion_tokens > self.tokens:
            raise Rewritten
        if not isinstance(frame, Tokens):
            return frame
        if not self._began:
            self._began, self.tokens = True, frame.seq
        end = frame.seq + len(frame.ids)
        if end <= self.tokens:
            return None
        if frame.seq != self.tokens:
            raise Rewritten
        self.tokens = end
        if self._whole:
            self._text.append(frame.text)
        return frame


class _SecondReading:
    """Compares a stream from its start with what the reader has of it."""

    def __init__(self, tokens: int, text: str) -> None:
        self.over = False
        self._tokens, self._text = tokens, text
        self._count = 0
        self._read = ""

    def beyond(self, frame: Frame) -> Tokens | None:
        """What the reader lacks of the first frame that goes beyond it. Raises Rewritten if they differ."""
        if isinstance(frame, FINAL):
            raise Rewritten  # it ends before what the reader has
        if not isinstance(frame, Tokens):
            return None
        if frame.seq != self._count:
            raise Rewritten
        ids = frame.ids[max(0, self._tokens - self._count) :]
        self._count += len(frame.ids)
        self._read += frame.text
        if self._count < self._tokens:
            if not self._text.startswith(self._read):
                raise Rewritten
            return None
        if not self._read.startswith(self._text):
            raise Rewritten
        self.over = True
        return Tokens(self._tokens, ids, self._read[len(self._text) :], frame.t_us) if ids else None


def merge_tokens(frames: Sequence[Tokens]) -> Tokens:
    """One frame in place of several that follow each other. Raises ValueError if there is none, or a gap."""
    if not frames:
        raise ValueError("there are no frames to merge")
    for before, after in pairwise(frames):
        if before.seq + len(before.ids) != after.seq:
            raise ValueError(f"the frame at token {after.seq} does not follow the one at {before.seq}")
    ids = tuple(token for frame in frames for token in frame.ids)
    return Tokens(frames[0].seq, ids, "".join(frame.text for frame in frames), frames[-1].t_us)

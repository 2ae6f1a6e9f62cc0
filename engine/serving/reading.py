"""Reading a generation's output stream: entries in, frames out, each token once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from engine.serving.messages import FINAL, Frame, Tokens, decode_frame

FROM_START = "0-0"


class StreamFrame(NamedTuple):
    """A frame and its id in the output stream; a reader that comes back asks for what follows the id."""

    id: str
    frame: Frame

    @property
    def final(self) -> bool:
        return isinstance(self.frame, FINAL)


def parse_entries(reply: Any) -> list[StreamFrame]:
    """The frames in the reply to an XREAD of one stream. Raises RequestError if an entry is no frame."""
    streams: Iterable[tuple[str, Sequence[tuple[str, Mapping[str, str]]]]]
    streams = reply.items() if isinstance(reply, Mapping) else (reply or ())
    return [
        StreamFrame(entry_id, decode_frame(fields)) for _, entries in streams for entry_id, fields in entries
    ]


class TokenCounter:
    """Drops the token frames that the reader already has, so that no token is shown twice."""

    def __init__(self) -> None:
        self.tokens = 0
        """How many tokens of the generation the reader has."""

    def fresh(self, frames: Iterable[StreamFrame]) -> list[StreamFrame]:
        return [frame for frame in frames if self._is_fresh(frame.frame)]

    def _is_fresh(self, frame: Frame) -> bool:
        if not isinstance(frame, Tokens):
            return True
        end = frame.seq + len(frame.ids)
        if end <= self.tokens:
            return False
        self.tokens = end
        return True


def merge_tokens(frames: Sequence[Tokens]) -> Tokens:
    """One frame in place of several that follow each other. Raises ValueError if there is none, or a gap."""
    if not frames:
        raise ValueError("there are no frames to merge")
    for before, after in pairwise(frames):
        if before.seq + len(before.ids) != after.seq:
            raise ValueError(f"the frame at token {after.seq} does not follow the one at {before.seq}")
    ids = tuple(token for frame in frames for token in frame.ids)
    return Tokens(frames[0].seq, ids, "".join(frame.text for frame in frames), frames[-1].t_us)

"""What a generation's output stream says about the workers that wrote it, for the one that goes on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.serving.messages import Frame, Started, Tokens


@dataclass(frozen=True, slots=True)
class Published:
    """The part of a generation that is already in its output stream. Empty for a new request."""

    ids: tuple[int, ...] = ()
    text: str = ""
    queue_ms: float | None = None
    """As the first worker measured it; None if there was none."""
    decode_us: int = 0
    """From the first to the last token of each launch, added up: the pauses are left out."""
    gaps: int = 0
    """How many gaps between tokens lie in `decode_us`."""
    model: str = ""
    """Whose tokens they are; empty if there are none."""

    @classmethod
    def of(cls, frames: Iterable[Frame]) -> Published:
        ids: list[int] = []
        text: list[str] = []
        queue_ms: float | None = None
        launches: list[_Launch] = []
        model = began = ""
        for frame in frames:
            if isinstance(frame, Started):
                launches.append(_Launch())
                began = frame.model
                queue_ms = frame.queue_ms if queue_ms is None else queue_ms
            elif isinstance(frame, Tokens):
                ids.extend(frame.ids)
                model = began
                text.append(frame.text)
                launches[-1].tokens += len(frame.ids)
                launches[-1].last_us = frame.t_us
        return cls(
            tuple(ids),
            "".join(text),
            queue_ms,
            sum(launch.last_us for launch in launches),
            sum(max(0, launch.tokens - 1) for launch in launches),
            model,
        )


@dataclass(slots=True)
class _Launch:
    tokens: int = 0
    last_us: int = 0

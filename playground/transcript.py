"""What is kept of a generation, gathered from its frames as they pass."""

from __future__ import annotations

from engine.serving.messages import Done, Frame, Started, Tokens
from playground.pace import Pace, PaceData


class Transcript:
    """Takes every frame of one generation once, in order."""

    def __init__(self) -> None:
        self.started: Started | None = None
        """By whom, last."""
        self.tokens = 0
        """How many there have been."""
        self._text: list[str] = []
        self._pace = Pace()

    def add(self, frame: Frame) -> None:
        match frame:
            case Started():
                self.started = frame
            case Tokens():
                self.tokens = frame.seq + len(frame.ids)
                self._text.append(frame.text)
                self._pace.add(frame)
            case Done():
                self._text.append(_without_cut_character(frame))
            case _:
                pass

    @property
    def text(self) -> str:
        return "".join(self._text)

    @property
    def pace(self) -> PaceData:
        return self._pace.data


def _without_cut_character(done: Done) -> str:
    """What was held back, without a character that the limit of tokens, or Stop, cut in two."""
    return done.text if done.finish_reason == "stop" else done.text.rstrip("\N{REPLACEMENT CHARACTER}")

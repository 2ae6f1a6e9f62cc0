"""How likely the model found each token, as the two APIs show it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from engine.serving.messages import Candidate, Scored


class ChatLogprobs:
    """For chat: one object a token, with its bytes, so that a reader can put characters together."""

    def of(self, frame: Scored) -> dict[str, Any]:
        pairs = zip(frame.chosen, frame.alternatives, strict=True)
        return {
            "content": [
                {**_token(chosen), "top_logprobs": [_token(other) for other in others]}
                for chosen, others in pairs
            ],
            "refusal": None,
        }


class TextLogprobs:
    """For completions: lists side by side. `text_offset` counts characters of the text from its begin."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def of(self, frame: Scored) -> dict[str, Any]:
        """The frames of a choice must come in order."""
        return {
            "tokens": [candidate.token for candidate in frame.chosen],
            "token_logprobs": [candidate.logprob for candidate in frame.chosen],
            "top_logprobs": [
                {other.token: other.logprob for other in (chosen, *others)}
                for chosen, others in zip(frame.chosen, frame.alternatives, strict=True)
            ],
            "text_offset": [self._place(candidate) for candidate in frame.chosen],
        }

    def _place(self, candidate: Candidate) -> int:
        """Where the token begins; one that only ends a character begins where that does."""
        place = self._offset
        self._offset += len(self._decoder.decode(bytes(candidate.bytes)))
        return place


def whole(frames: Sequence[Scored], *, chat: bool) -> dict[str, Any]:
    """The scores of a whole answer."""
    chosen = tuple(candidate for frame in frames for candidate in frame.chosen)
    alternatives = tuple(others for frame in frames for others in frame.alternatives)
    return logprobs_of(chat=chat).of(Scored(0, chosen, alternatives))


def logprobs_of(*, chat: bool) -> ChatLogprobs | TextLogprobs:
    """For one choice."""
    return ChatLogprobs() if chat else TextLogprobs()


def _token(candidate: Candidate) -> dict[str, Any]:
    spelled = list(candidate.bytes) or None
    return {"token": candidate.token, "logprob": candidate.logprob, "bytes": spelled}

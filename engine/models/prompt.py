"""What a model is asked to continue: a text, a text with a gap to fill, or a conversation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import RequestError


@dataclass(frozen=True, slots=True)
class ChatMessage:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """Exactly one of: `text` (with an optional `suffix` to fill in before), or chat `messages`.

    Raises RequestError on construction if it is neither or both.
    """

    text: str | None = None
    suffix: str | None = None
    messages: tuple[ChatMessage, ...] = ()

    def __post_init__(self) -> None:
        if (self.text is None) == (not self.messages):
            raise RequestError("a prompt is either a text or a list of chat messages")
        if self.suffix is not None and self.text is None:
            raise RequestError("a suffix goes with a text prompt, not with chat messages")

"""What a model is asked to continue: a text, a text with a gap to fill, token ids, or a conversation."""

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
    """Exactly one of: `text` (with an optional `suffix` to fill in before), chat `messages`, or
    `tokens`, which are read as they are.

    Raises RequestError on construction if it is none or several.
    """

    text: str | None = None
    suffix: str | None = None
    messages: tuple[ChatMessage, ...] = ()
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if (self.text is not None) + bool(self.messages) + bool(self.tokens) != 1:
            raise RequestError("a prompt is either a text, token ids, or a list of chat messages")
        if self.suffix is not None and self.text is None:
            raise RequestError("a suffix goes with a text prompt")

"""Text from tokens as they come: never half a character, never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from engine.errors import RequestError


class SpellsTokens(Protocol):
    """Says what tokens add to a text, asked in their order."""

    def token_bytes(self, token: int) -> bytes: ...


class TextStream:
    """Turns one generation's tokens into text that is safe to show at once.

    All pushes and the finish, joined, are the decoded tokens, cut before the stop string that is complete
    first (of several that end together, the longest). `stopped` turns true when one is met; text after it
    is dropped. Raises RequestError if a stop string is empty.
    """

    def __init__(self, speller: SpellsTokens, stop: Sequence[str] = ()) -> None:
        if "" in stop:
            raise RequestError("a stop string is empty; leave it out or give it at least one character")
        self._speller = speller
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that `token` makes certain; often "" while a character or a stop string is open."""
        if self.stopped:
            return ""
        return self._advance(self._decoder.decode(self._speller.token_bytes(token)))

    def finish(self) -> str:
        """What was held back, the broken rest of a character as U+FFFD. "" after a stop string."""
        if self.stopped:
            return ""
        text = self._advance(self._decoder.decode(b"", final=True)) + self._held
        self._held = ""
        return text

    def _advance(self, text: str) -> str:
        if not text:
            return ""
        open_text = self._held + text
        matches = [(at + len(s), at) for s in self._stop if (at := open_text.find(s)) >= 0]
        if matches:
            self.stopped = True
            self._held = ""
            return open_text[: min(matches)[1]]
        keep = self._open_suffix(open_text)
        self._held = open_text[len(open_text) - keep :]
        return open_text[: len(open_text) - keep]

    def _open_suffix(self, text: str) -> int:
        """Length of the longest end of `text` that could still become a stop string."""
        longest = max(map(len, self._stop), default=1) - 1
        for size in range(min(longest, len(text)), 0, -1):
            end = text[-size:]
            if any(s.startswith(end) and len(s) > size for s in self._stop):
                return size
        return 0

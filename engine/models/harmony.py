"""The answers of GPT-OSS: messages on channels, of which only the last is meant for the reader.

An answer is <|channel|>analysis<|message|>...<|end|>, then <|start|>assistant<|channel|>final<|message|>...,
and at last <|return|>. Source: OpenAI, "Harmony response format". Other models write what they think between
<think> and </think>, as ordinary text, so an answer is spelled that way: whoever shows it knows one form.
"""

from __future__ import annotations

from collections.abc import Callable

RETURN = "<|return|>"
"""Ends an answer; by it this vocabulary is known."""
ENDS = frozenset((RETURN, "<|call|>", "<|endoftext|>"))
"""Special tokens after which nothing follows: `<|end|>` ends one message of several."""
_FINAL = b"final"
_THOUGHT_BEGINS, _THOUGHT_ENDS = b"<think>\n", b"\n</think>\n\n"


class HarmonySpeller:
    """Spells an answer without its messages' headers, whatever is not the final message as a thought."""

    def __init__(self, spell: Callable[[int], bytes], id_of: Callable[[str], int | None]) -> None:
        self._spell = spell
        self._opens_header = frozenset((id_of("<|start|>"), id_of("<|channel|>"), id_of("<|end|>")))
        self._message = id_of("<|message|>")
        self._header: bytes | None = None
        """What a header has said so far; None in a message."""
        self._thinks = False

    def token_bytes(self, token: int) -> bytes:
        if token in self._opens_header:
            self._header = b""
        elif self._header is None:
            return self._spell(token)
        elif token == self._message:
            return self._begin_message()
        else:
            self._header += self._spell(token)
        return b""

    def _begin_message(self) -> bytes:
        thinks, self._header = not (self._header or b"").startswith(_FINAL), None
        if thinks == self._thinks:
            return b""
        self._thinks = thinks
        return _THOUGHT_BEGINS if thinks else _THOUGHT_ENDS

"""Tokens of texts that begin as earlier ones did, without tokenising their beginning again.

A text is cut into pieces of some 500 characters, at places where every byte-level vocabulary here cuts words
too, whatever comes before or after; so the tokens of the text are those of its pieces, one after the other.
Where a text is cut depends on its beginning alone: two that begin alike share pieces, and those are kept.
"""

from __future__ import annotations

import json
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import tokenizers

from engine.models.checkpoints.gguf_vocabulary import LLAMA3_WORDS, QWEN2_WORDS

PIECE_CHARS = 512
KEPT_CHARS = 1 << 22
"""Of all owners together: some 1 million tokens, 40 MB. The least recently used go first."""

_CUT = re.compile(r"(?<=[0-9A-Za-z])(?=\n| [A-Za-z])")
"""Between a letter or digit and a line's end, or a space that a letter follows.

GPT-2's rule and those of Llama 3 and Qwen 2 begin a word at that space or line end: their words of letters
and digits hold no white space after the first character, and none of their rules looks back.
"""
_WORD_RULES = (LLAMA3_WORDS, QWEN2_WORDS)

Encode = Callable[[Sequence[str]], list[list[int]]]
"""The tokens of each text by itself."""


class TokenReuse:
    """Keeps the tokens of pieces, each for its owner alone: how fast a prompt is read tells nobody else's."""

    def __init__(self, kept_chars: int = KEPT_CHARS, piece_chars: int = PIECE_CHARS) -> None:
        self._most, self._piece_chars = kept_chars, piece_chars
        self._chars = 0
        self._kept: OrderedDict[tuple[str, bool, str], list[int]] = OrderedDict()
        self._lock = threading.Lock()

    def encode(self, text: str, owner: str, encode: Encode, *, special: bool) -> list[int]:
        """The tokens of `text`. `special` tells apart two ways to encode the same text."""
        keys = [(owner, special, piece) for piece in pieces(text, self._piece_chars)]
        with self._lock:
            known = {key: self._kept[key] for key in keys if key in self._kept}
        missing = [key for key in dict.fromkeys(keys) if key not in known]
        fresh = dict(zip(missing, encode([piece for _, _, piece in missing]), strict=True)) if missing else {}
        found = known | fresh
        with self._lock:
            for key, ids in found.items():
                self._keep(key, ids)
        return list(chain.from_iterable(found[key] for key in keys))

    def _keep(self, key: tuple[str, bool, str], ids: list[int]) -> None:
        if key not in self._kept:
            self._chars += len(key[2])
        self._kept[key] = ids
        self._kept.move_to_end(key)
        while self._chars > self._most:
            (_, _, piece), _ = self._kept.popitem(last=False)
            self._chars -= len(piece)


def pieces(text: str, least: int) -> list[str]:
    """`text` in parts of at least so many characters, but for the last; none for an empty text."""
    found, start = [], 0
    while cut := _CUT.search(text, start + least):
        found.append(text[start : cut.start()])
        start = cut.start()
    return [*found, text[start:]] if text else []


def may_cut(tokenizer: tokenizers.Tokenizer) -> bool:
    """Whether `_CUT` is right for this vocabulary. False for any whose rules are not known to allow it."""
    model, rule = tokenizer.model, tokenizer.pre_tokenizer
    return (
        isinstance(model, tokenizers.models.BPE)
        and not model.dropout
        and isinstance(tokenizer.normalizer, tokenizers.normalizers.NFC | None)
        and rule is not None
        and _begins_words_there(json.loads(rule.__getstate__()))  # as tokenizer.json has it
        and not any(_crosses(token) for token in tokenizer.get_added_tokens_decoder().values())
    )


def _begins_words_there(rule: dict[str, Any]) -> bool:
    """Whether a word begins at every cut."""
    *before, last = rule["pretokenizers"] if rule["type"] == "Sequence" else [rule]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    words = [step for step in before if step["type"] != "Digits"]
    if not words:
        return bool(last["use_regex"])
    return [_is_known_split(step) for step in words] == [True]


def _is_known_split(step: dict[str, Any]) -> bool:
    return (
        step["type"] == "Split"
        and step["pattern"].get("Regex") in _WORD_RULES
        and step["behavior"] == "Isolated"
        and not step["invert"]
    )


def _crosses(added: tokenizers.AddedToken) -> bool:
    """Whether an added token could lie on both sides of a cut."""
    takes_what_follows = added.rstrip and re.search(r"[0-9A-Za-z]\Z", added.content)
    return bool(takes_what_follows or re.search(r"\s", added.content))

"""Fill in the middle: the tokens that mark a text with a gap, and how each style of model arranges them.

Every style here writes <prefix> text <suffix> text <middle>, and the model goes on with what belongs between.
They differ in names, and in which special tokens then end the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InfillStyle:
    """Names of special tokens; `ends` are those that a model writes when the gap is full."""

    prefix: str
    suffix: str
    middle: str
    ends: tuple[str, ...] = ()


STYLES = {
    "starcoder": InfillStyle("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ("<fim_pad>", "<file_sep>")),
    "qwen": InfillStyle(
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        ("<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>"),
    ),
    "deepseek-coder": InfillStyle("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", ("<|EOT|>",)),
    "codellama": InfillStyle("▁<PRE>", "▁<SUF>", "▁<MID>", ("▁<EOT>",)),
}
"""By the family that made it known: StarCoder 1 and 2, Granite; Qwen2.5-Coder, CodeGemma; DeepSeek-Coder;
Code Llama."""


@dataclass(frozen=True, slots=True)
class InfillTokens:
    """The ids that mark a fill-in-the-middle prompt: prefix text, suffix text, then the model's turn."""

    prefix: int
    suffix: int
    middle: int
    ends: frozenset[int] = frozenset()
    """Ids after which the gap is full."""

    def arrange(self, prefix: list[int], suffix: list[int]) -> list[int]:
        """The prompt of a text with a gap between `prefix` and `suffix`."""
        return [self.prefix, *prefix, self.suffix, *suffix, self.middle]

    def __iter__(self) -> Iterator[int]:
        """Every id that steers the model, none of which users may type."""
        return iter((self.prefix, self.suffix, self.middle, *sorted(self.ends)))


def find_infill(
    token_to_id: Callable[[str], int | None], named: tuple[int, int, int] | None
) -> InfillTokens | None:
    """The tokens of a vocabulary: `named` by its container (prefix, suffix, middle), else by their names.

    None if the vocabulary has no style's three tokens.
    """
    for style in STYLES.values():
        ids = tuple(token_to_id(name) for name in (style.prefix, style.suffix, style.middle))
        prefix, suffix, middle = ids
        if prefix is None or suffix is None or middle is None or named not in (None, ids):
            continue
        ends = (token_to_id(name) for name in style.ends)
        return InfillTokens(prefix, suffix, middle, frozenset(end for end in ends if end is not None))
    return InfillTokens(*named) if named else None

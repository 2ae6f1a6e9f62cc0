"""The prompts whose first tokens are timed."""

from __future__ import annotations

PROMPT = "def fibonacci(n):"
"""The short one."""
LINE = "    total = total + values[index] * weights[index]  # row {}\n"
"""Of a long prompt, some 20 tokens."""
LINES = (0, 32, 96, 352)
"""Lengths of prompts; the longest with its turn must fit into the default model's context."""
TURN = "\n\nNow say in one sentence what these lines of the program do to the total, each row"
"""What comes after a long prompt that is kept, some 20 tokens."""
NEW_TOKENS = 4
"""That each of them asks for."""


def prompt_of(number: int, lines: int, end: str) -> str:
    """The short one for 0 lines, whatever its end. A long one begins like none of another number."""
    if not lines:
        return f"{PROMPT}  # {number}"
    return f"# {number}, {lines}\n" + "".join(LINE.format(index) for index in range(lines)) + end

"""The long prompts whose first tokens are timed."""

from __future__ import annotations

LINE = "    total = total + values[index] * weights[index]  # row {}\n"
"""Of a long prompt, some 20 tokens."""
LINES = (0, 32, 96, 352)
"""Lengths of prompts; the longest with its turn must fit into the default model's context."""
TURN = "\n\nNow say in one sentence what these lines of the program do to the total, each row"
"""What comes after a long prompt that is kept, some 20 tokens."""

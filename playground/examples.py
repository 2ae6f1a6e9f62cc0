"""The prompts that the page offers to somebody who has none."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Example(TypedDict):
    """`kind` says what a model must be able to do: continue text, chat, fill in before a suffix, or correct a
    program that fails its tests.

    `language` is what the editor highlights it as. The first one is what a new visitor finds. A prompt to
    complete ends where a token may end: after a colon rather than in the white space of the next line.
    """

    title: str
    kind: str
    language: str
    prompt: str
    suffix: NotRequired[str]
    tests: NotRequired[str]
    button: NotRequired[str]
    """What a new visitor may press to see it done."""


EXAMPLES: tuple[Example, ...] = (
    {
        "title": "Python: a stack",
        "button": "Complete a class",
        "kind": "completion",
        "language": "python",
        "prompt": "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
        "    def push(self, item):",
    },
    {
        "title": "Python: binary search",
        "kind": "completion",
        "language": "python",
        "prompt": "def binary_search(items, target):\n"
        "    low, high = 0, len(items) - 1\n    while low <= high:",
    },
    {
        "title": "Python: Fibonacci",
        "kind": "completion",
        "language": "python",
        "prompt": "def fibonacci(n):\n",
    },
    {
        "title": "JavaScript: squares",
        "kind": "completion",
        "language": "javascript",
        "prompt": "const numbers = [1, 2, 3, 4];\nconst squares =",
    },
    {
        "title": "SQL: monthly revenue",
        "kind": "completion",
        "language": "text",
        "prompt": "-- Table orders(id, customer_id, total, created_at)\n"
        "-- Revenue by month of the last year, newest first\nSELECT",
    },
    {
        "title": "Chat: explain a closure",
        "button": "Ask what a closure is",
        "kind": "chat",
        "language": "text",
        "prompt": "Explain what a closure is in JavaScript, with one short example.",
    },
    {
        "title": "Chat: write a test",
        "kind": "chat",
        "language": "text",
        "prompt": "Write plain `test_` functions with assert for a function `slugify(text)`"
        " that turns 'Hello, World!' into 'hello-world'.",
    },
    {
        "title": "Python: run and fix",
        "button": "Fix a bug",
        "kind": "program",
        "language": "python",
        "prompt": "def is_even(number):\n    return number % 2 == 1\n",
        "tests": "def test_four():\n    assert is_even(4)\n\n\n"
        "def test_seven():\n    assert not is_even(7)\n",
    },
    {
        "title": "Fill in the middle",
        "kind": "infill",
        "language": "python",
        "prompt": "def mean(values: list[float]) -> float:\n",
        "suffix": "\n    return total / len(values)\n",
    },
)

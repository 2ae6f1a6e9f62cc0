"""The prompts that the page offers to somebody who has none."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Example(TypedDict):
    """`kind` says what a model must be able to do: continue text, chat, or fill in before a suffix."""

    title: str
    kind: str
    prompt: str
    suffix: NotRequired[str]


EXAMPLES: tuple[Example, ...] = (
    {
        "title": "Fibonacci",
        "kind": "completion",
        "prompt": 'def fibonacci(n: int) -> int:\n    """The n-th Fibonacci number, from 0."""\n',
    },
    {
        "title": "Binary search",
        "kind": "completion",
        "prompt": "def binary_search(items: list[int], wanted: int) -> int | None:\n"
        '    """Index of `wanted` in the sorted `items`, or None."""\n',
    },
    {
        "title": "Parse a log line",
        "kind": "completion",
        "prompt": "import re\n\n"
        "LINE = '127.0.0.1 - - [10/Oct/2000:13:55:36] \"GET /index.html\" 200 2326'\n\n\n"
        "def parse(line: str) -> dict[str, str]:\n",
    },
    {
        "title": "SQL: monthly revenue",
        "kind": "completion",
        "prompt": "-- Table orders(id, customer_id, total, created_at)\n"
        "-- Revenue by month of the last year, newest first\nSELECT",
    },
    {
        "title": "Chat: explain a closure",
        "kind": "chat",
        "prompt": "Explain what a closure is in JavaScript, with one short example.",
    },
    {
        "title": "Chat: write a test",
        "kind": "chat",
        "prompt": "Write a pytest test for a function `slugify(text)` "
        "that turns 'Hello, World!' into 'hello-world'.",
    },
    {
        "title": "Fill in the middle",
        "kind": "infill",
        "prompt": "def mean(values: list[float]) -> float:\n",
        "suffix": "\n    return total / len(values)\n",
    },
)

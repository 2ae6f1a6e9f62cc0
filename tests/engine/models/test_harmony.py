"""Answers in GPT-OSS's format: thoughts stand between marks, headers nowhere."""

from __future__ import annotations

import pytest

from engine.models.harmony import HarmonySpeller
from engine.models.text_stream import TextStream

NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>")
WORDS = (
    "assistant",
    "analysis",
    "final",
    "commentary",
    " to=functions.f",
    "They greet.",
    "Hello",
    " you",
    "é",
)
VOCABULARY = (*NAMES, *WORDS)


def speller() -> HarmonySpeller:
    def spell(token: int) -> bytes:
        return b"" if token < len(NAMES) else VOCABULARY[token].encode()

    return HarmonySpeller(spell, {name: i for i, name in enumerate(NAMES)}.get)


def text_of(*tokens: str) -> str:
    stream = TextStream(speller())
    return "".join(stream.push(VOCABULARY.index(token)) for token in tokens) + stream.finish()


THOUGHT = ("<|channel|>", "analysis", "<|message|>", "They greet.", "<|end|>")
ANSWER = ("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "Hello", " you", "<|return|>")


def test_a_thought_stands_between_marks_before_the_answer() -> None:
    assert text_of(*THOUGHT, *ANSWER) == "<think>\nThey greet.\n</think>\n\nHello you"


def test_an_answer_without_a_thought_is_its_text() -> None:
    assert text_of(*ANSWER[2:]) == "Hello you"


def test_a_thought_that_is_cut_off_stays_open() -> None:
    assert text_of(*THOUGHT[:4]) == "<think>\nThey greet."


def test_thoughts_that_follow_each_other_share_their_marks() -> None:
    tool = (
        "<|start|>",
        "assistant",
        "<|channel|>",
        "commentary",
        " to=functions.f",
        "<|message|>",
        "é",
        "<|end|>",
    )

    assert text_of(*THOUGHT, *tool, *ANSWER) == "<think>\nThey greet.é\n</think>\n\nHello you"


@pytest.mark.parametrize("name", ["final", "analysis", "assistant"])
def test_a_message_may_say_the_name_of_a_channel(name: str) -> None:
    assert text_of(*ANSWER[2:5], name) == name

"""What the operator pins is read once, and everybody's prompt goes on from it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.backends.base import Job
from engine.backends.running import complete
from engine.errors import ConfigError
from engine.models.prompt import ChatMessage, Prompt
from engine.serving.engines import Engine, EngineSpec, open_engine
from engine.serving.pinning import pin, pinned_prompt
from tests.engine.serving.workers import write_chatterbox

SYSTEM = "You answer in one short sentence."


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    opened = open_engine(EngineSpec(str(write_chatterbox(tmp_path / "chatterbox")), "numpy"))
    yield opened
    opened.backend.close()


def cached_tokens(engine: Engine, text: str, owner: str) -> int:
    assert engine.model.tokenizer is not None
    tokens = tuple(engine.model.tokenizer.encode_prompt(Prompt(text)))
    launch = engine.backend.launch(Job(tokens, 1, cache_salt=owner))
    while launch.outcome is None:
        launch.poll(1.0)
    outcome = launch.outcome
    launch.close()
    return outcome.cached_tokens


def test_every_owner_goes_on_from_a_pinned_prompt(engine: Engine) -> None:
    pin(engine, [Prompt(SYSTEM)])
    for owner in ("anna", "ben"):
        assert cached_tokens(engine, f"{SYSTEM} {owner}?", owner) == len(SYSTEM)
    assert cached_tokens(engine, f"{SYSTEM} who?", "") == 0


def test_the_tokens_are_those_of_a_cold_prompt(engine: Engine) -> None:
    assert engine.model.tokenizer is not None
    tokens = tuple(engine.model.tokenizer.encode_prompt(Prompt(SYSTEM + " And?")))
    cold = [token.id for token in complete(engine.backend, Job(tokens, 24))]
    pin(engine, [Prompt(SYSTEM)])
    warm = complete(engine.backend, Job(tokens, 24, cache_salt="anna"))
    assert [token.id for token in warm] == cold


def test_a_prompt_that_has_no_room_is_told_of(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        pin(engine, [Prompt("x" * 5000), Prompt(messages=(ChatMessage("system", SYSTEM),))])
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "prompt 1 is not pinned",
        "prompt 2 is not pinned",
    ]


def test_a_file_is_a_text_or_chat_messages(tmp_path: Path) -> None:
    text, chat = tmp_path / "a.txt", tmp_path / "b.json"
    text.write_text(SYSTEM)
    chat.write_text(json.dumps([{"role": "system", "content": SYSTEM}]))
    assert pinned_prompt(text) == Prompt(SYSTEM)
    assert pinned_prompt(chat) == Prompt(messages=(ChatMessage("system", SYSTEM),))


@pytest.mark.parametrize("content", ["{", "[]", '[{"role": "system"}]', '"text"'])
def test_a_file_that_holds_no_messages_is_refused_with_the_form_that_it_needs(
    tmp_path: Path, content: str
) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(
        ConfigError, match=r"c\.json cannot be pinned .*; it must be a text, or a \.json file"
    ):
        pinned_prompt(path)
    with pytest.raises(ConfigError, match="cannot be pinned"):
        pinned_prompt(tmp_path / "nothing.txt")

"""In what order a generation tells of its tokens and of itself."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest

from engine.backends.base import Job, Token
from engine.models.prompt import Prompt
from engine.serving.engines import Engine, EngineSpec, open_model_of
from engine.serving.generation import Generation, Host
from engine.serving.messages import GenerateRequest
from engine.serving.publisher import Output
from tests.engine.scripted import ScriptedBackend, ScriptedLaunch


class EndsWhilePolled(ScriptedLaunch):
    """As a GPU's does: that it has ended is seen by a poll that finds nothing more."""

    def poll(self, timeout: float) -> Sequence[Token]:
        fresh = super().poll(timeout)
        self.endless = bool(fresh)
        return fresh


class EndingWhilePolled(ScriptedBackend):
    def launch(self, job: Job) -> ScriptedLaunch:
        made = super().launch(job)
        return EndsWhilePolled(made.tokens, made.result, endless=True)


@pytest.mark.parametrize("backend", [ScriptedBackend, EndingWhilePolled])
@pytest.mark.parametrize(
    ("max_tokens", "expected"),  # the script gives three at once
    [(6, ["tokens", "tokens", "begin"]), (3, ["tokens"])],
)
def test_the_first_tokens_leave_before_anything_else_is_told(
    monkeypatch: pytest.MonkeyPatch, backend: Any, max_tokens: int, expected: list[str]
) -> None:
    """What wakes another thread just then holds up the one that sends them; so it would the end."""
    spec = EngineSpec("words", "paced")
    model = open_model_of(spec)
    told: list[str] = []
    monkeypatch.setattr(Output, "tokens", lambda *_: told.append("tokens"))
    host = Host(
        must_leave=lambda _left: False,
        on_begin=lambda: told.append("begin"),
        wanting_room=nullcontext,
        may_end=lambda: True,
        before_end=lambda: None,
    )
    request = GenerateRequest("g", Prompt(text="a"), max_tokens=max_tokens)
    output = Output("g", [], None, lambda _output: None)
    done = Generation(Engine(spec, model, backend(model.config)), request, output, "w", 0.0).run(host)
    assert done is not None
    assert told == expected

"""In what order a generation tells of its tokens and of itself."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest

from engine.models.prompt import Prompt
from engine.serving.engines import Engine, EngineSpec, open_model_of
from engine.serving.generation import Generation, Host
from engine.serving.messages import GenerateRequest
from engine.serving.publisher import Output
from tests.engine.scripted import ScriptedBackend


def test_the_first_tokens_leave_before_anything_else_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What wakes another thread just then holds up the one that sends them."""
    spec = EngineSpec("words", "paced")
    model = open_model_of(spec)
    backend: Any = ScriptedBackend(model.config)
    told: list[str] = []
    monkeypatch.setattr(Output, "tokens", lambda *_: told.append("tokens"))
    host = Host(
        must_leave=lambda _left: False,
        on_begin=lambda: told.append("begin"),
        wanting_room=nullcontext,
        may_end=lambda: True,
        before_end=lambda: None,
    )
    request = GenerateRequest("g", Prompt(text="a"), max_tokens=6)  # the script gives three at once
    output = Output("g", [], None, lambda _output: None)
    done = Generation(Engine(spec, model, backend), request, output, "w", 0.0).run(host)
    assert done is not None
    assert told == ["tokens", "tokens", "begin"]

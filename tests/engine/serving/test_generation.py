"""In what order a generation tells of its tokens and of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Job, OnStep, Token, ignore_step
from engine.errors import NoRoom
from engine.models.prompt import Prompt
from engine.serving.engines import Engine, EngineSpec, open_model_of
from engine.serving.generation import Generation, Host
from engine.serving.messages import Done, Frame, GenerateRequest, Scored
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


class Scoring(ScriptedBackend):
    """Has no room for a scoring at first, and does something while it scores."""

    refusals = 0
    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        if len(tokens) > 1:  # not the question whether there are any
            if self.refusals:
                self.refusals -= 1
                raise NoRoom("others are in flight")
            self.meanwhile()
        return super().logits(tokens, scored_from, on_step)


class Kept(Output):
    """Remembers how many tokens it was given the scores of."""

    scores = 0

    def frame(self, frame: Frame) -> None:
        if isinstance(frame, Scored):
            self.scores += len(frame.chosen)
        super().frame(frame)


def scored(
    backend: Scoring,
    output: Output,
    must_leave: Callable[[float], bool] = lambda _left: False,
    wanting_room: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Done | None:
    """What a request for log-probabilities comes to."""
    spec = EngineSpec("words", "paced")
    host = Host(
        must_leave=must_leave,
        on_begin=lambda: None,
        wanting_room=wanting_room,
        may_end=lambda: True,
        before_end=lambda: None,
    )
    request = GenerateRequest("g", Prompt(text="a"), max_tokens=3, logprobs=0)
    engine = Engine(spec, open_model_of(spec), backend)
    return Generation(engine, request, output, "w", 0.0).run(host)


@pytest.fixture
def backend() -> Scoring:
    return Scoring(open_model_of(EngineSpec("words", "paced")).config)


@pytest.fixture
def output() -> Kept:
    return Kept("g", [], None, lambda _output: None)


def test_a_scoring_waits_for_room_and_keeps_newer_requests_from_taking_it(
    backend: Scoring, output: Kept
) -> None:
    held: list[int] = []

    @contextmanager
    def wanting_room() -> Iterator[None]:
        held.append(backend.refusals)
        yield
        held.append(backend.refusals)

    backend.refusals = 3
    assert scored(backend, output, wanting_room=wanting_room) is not None
    assert held == [2, 0]
    assert output.scores == 3


def test_a_client_that_leaves_ends_the_scoring(backend: Scoring, output: Kept) -> None:
    backend.meanwhile = output.cancelled.set
    done = scored(backend, output)
    assert done is not None and done.finish_reason == "length"
    assert output.scores == 0


@pytest.mark.parametrize("refusals", [0, 1])
def test_a_worker_that_has_to_leave_gives_the_scoring_up(
    backend: Scoring, output: Kept, refusals: int
) -> None:
    leaving: list[bool] = []
    backend.refusals, backend.meanwhile = refusals, lambda: leaving.append(True)
    if refusals:
        leaving.append(True)
    assert scored(backend, output, must_leave=lambda left: bool(leaving) and left >= 1.0) is None
    assert output.scores == 0

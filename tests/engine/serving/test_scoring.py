"""Log-probabilities: the model's own, of every token that the text shows, once each."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from engine.backends import open_backend
from engine.errors import RequestError
from engine.models.catalogue import open_model
from engine.serving import scoring
from engine.serving.messages import LEAST_LOGPROB, Failed, Scored
from engine.serving.scoring import FRAME_TOKENS, check_room, scores
from tests.engine.serving.workers import Story, chat, read_story


@pytest.fixture(scope="module")
def engine(chatterbox):
    model = open_model(str(chatterbox))
    backend = open_backend("numpy", model)
    yield backend, model.tokenizer
    backend.close()


def test_scores_are_the_log_softmax_of_the_logits_before_each_token(engine):
    backend, tokenizer = engine
    prompt, answer = [5, 6, 7], [8, 9, 10, 11]
    (frame,) = scores(backend, tokenizer, prompt, answer, alternatives=3)
    logits = backend.logits(prompt + answer).astype(np.float64)
    for i, token in enumerate(answer):
        row = logits[len(prompt) - 1 + i]
        expected = row - np.log(np.exp(row).sum())
        assert frame.chosen[i].logprob == pytest.approx(expected[token], abs=1e-6)
        best = np.argsort(-expected, kind="stable")[:3]
        assert [c.logprob for c in frame.alternatives[i]] == pytest.approx(list(expected[best]), abs=1e-6)
        assert [c.token for c in frame.alternatives[i]] == [tokenizer.label(int(b)) for b in best]


def test_a_probability_of_nought_has_a_logarithm_that_travels(engine):
    class Certain:
        def logits(self, tokens, scored_from, on_step):
            rows = len(tokens) - scored_from
            return np.where(np.arange(300) == 9, 0.0, -np.inf)[np.newaxis].repeat(rows, 0)

    (frame,) = scores(Certain(), engine[1], [1], [9, 8], alternatives=0)
    assert [candidate.logprob for candidate in frame.chosen] == [0.0, LEAST_LOGPROB]


def test_a_long_answer_comes_in_frames_that_follow_each_other(engine):
    answer = [n % 200 for n in range(2 * FRAME_TOKENS + 3)]
    frames = list(scores(*engine, [1], answer, alternatives=0))
    assert [len(frame.chosen) for frame in frames] == [FRAME_TOKENS, FRAME_TOKENS, 3]
    assert all(a.seq + len(a.chosen) == b.seq for a, b in pairwise(frames))
    assert frames[0].alternatives[0] == ()


def test_scoring_goes_on_where_another_worker_left_off(engine):
    answer = list(range(30, 40))
    (whole,) = scores(*engine, [1, 2], answer, alternatives=1)
    (rest,) = scores(*engine, [1, 2], answer, alternatives=1, first=4)
    assert rest.seq == 4
    assert rest.chosen == whole.chosen[4:]
    assert list(scores(*engine, [1, 2], answer, alternatives=1, first=10)) == []


def test_an_answer_that_would_not_fit_in_memory_is_refused_before_it_is_begun(engine, monkeypatch):
    backend, _ = engine
    monkeypatch.setattr(scoring, "LOGITS_BYTES", 4 * backend.config.vocab * 100)
    check_room(backend, 40, 100)
    with pytest.raises(RequestError, match=r"at most 100 tokens.*may have 101: set max_tokens to 100"):
        check_room(backend, 40, 101)


def test_a_prompt_that_takes_long_to_read_once_more_is_refused(engine, monkeypatch):
    monkeypatch.setattr(scoring, "MOST_TOKENS", 100)
    check_room(engine[0], 40, 60)
    with pytest.raises(RequestError, match="at most 60 tokens after this prompt"):
        check_room(engine[0], 40, 61)
    with pytest.raises(RequestError, match=r"this prompt has 100: shorten it"):
        check_room(engine[0], 100, 1)


def test_only_the_answers_logits_are_asked_for(engine, monkeypatch):
    backend, tokenizer = engine
    asked = []
    logits = backend.logits
    monkeypatch.setattr(
        backend, "logits", lambda tokens, *rest: asked.append((len(tokens), rest[0])) or logits(tokens, *rest)
    )
    list(scores(backend, tokenizer, list(range(9)), [8, 9, 10], alternatives=0))
    list(scores(backend, tokenizer, list(range(9)), [8, 9, 10], alternatives=0, first=2))
    assert asked == [(11, 8), (11, 10)]


def test_scoring_ends_with_what_a_step_raises(engine):
    class Left(Exception): ...

    def leave() -> None:
        raise Left

    with pytest.raises(Left):
        next(scores(*engine, [1, 2], [8, 9], alternatives=0, on_step=leave))


def scored_of(story: Story) -> list[Scored]:
    return [frame for frame in story.frames if isinstance(frame, Scored)]


@pytest.mark.slow
def test_a_workers_scores_cover_every_token_and_spell_the_text(client, workers, chatterbox):
    workers.start("w", chatterbox)
    client.submit(chat("g", tokens=90, logprobs=2))
    story = read_story(client, "g")
    found = scored_of(story)
    chosen = [candidate for frame in found for candidate in frame.chosen]
    assert len(chosen) == len(story.ids) == 90
    spelled = bytes(byte for candidate in chosen for byte in candidate.bytes)
    assert spelled.decode("utf-8", "replace") == story.text
    assert all(candidate.logprob < 0 for candidate in chosen)
    for frame in found:
        for pair in frame.alternatives:
            assert pair[0].logprob >= pair[1].logprob
            assert sum(math.exp(candidate.logprob) for candidate in pair) <= 1
    assert type(story.frames[-2]) is Scored


@pytest.mark.slow
def test_nothing_is_scored_unless_asked_for(client, workers, chatterbox):
    workers.start("w", chatterbox)
    client.submit(chat("g", tokens=5))
    assert scored_of(read_story(client, "g")) == []


@pytest.mark.slow
def test_tokens_behind_a_stop_string_are_not_scored(client, workers, chatterbox):
    workers.start("w", chatterbox)
    client.submit(chat("whole", tokens=60))
    text = read_story(client, "whole").text
    stop = text[20:22]
    client.submit(chat("g", tokens=60, stop=(stop,), logprobs=0))
    story = read_story(client, "g")
    spelled = bytes(byte for frame in scored_of(story) for c in frame.chosen for byte in c.bytes)
    assert story.text == text[: text.index(stop)]
    assert spelled.decode("utf-8", "replace").startswith(story.text)
    assert len(spelled) <= len(story.text.encode()) + 1


@pytest.mark.slow
def test_a_backend_without_logits_refuses_before_the_first_token(client, workers):
    workers.start("p", "words", "paced")
    client.submit(chat("g", logprobs=1))
    story = read_story(client, "g")
    assert story.ids == []
    assert isinstance(story.end, Failed)
    assert "computes no model" in story.end.message

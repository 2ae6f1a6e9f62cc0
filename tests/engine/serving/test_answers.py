"""What a worker answers to requests, good and bad."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis
from msgspec import structs

from engine.models.prompt import Prompt
from engine.serving.engines import Engine, EngineSpec, Loading, open_engine
from engine.serving.heartbeat import HeartbeatThread
from engine.serving.messages import (
    EXPIRES_S,
    INTERACTIVE,
    BenchRequest,
    Done,
    Failed,
    decode_frame,
    out_key,
)
from tests.engine.serving.worker_threads import answer, ask, bench, read_story_of, working
from tests.engine.serving.workers import read_story
from tests.waiting import wait_until


def test_a_generation_is_told_from_start_to_end(client, worker):
    story = read_story_of(client, ask("g"))
    started, end = story.frames[0], story.end
    assert (started.worker, started.model, started.backend, started.prompt_tokens) == (
        "w",
        "words",
        "paced",
        2,
    )
    assert len(story.ids) == 20
    assert (end.finish_reason, end.timings.completion_tokens, end.timings.prompt_tokens) == ("length", 20, 2)
    assert end.timings.decode_tok_s == pytest.approx(2000, rel=0.01)
    assert end.timings.decode_ms == pytest.approx(9.5, abs=0.01)
    assert end.timings.prefill_ms == pytest.approx(20, abs=0.01)
    assert end.timings.ttft_ms >= end.timings.queue_ms + 20


def test_the_end_is_out_before_the_worker_tells_how_fast_it_was(client, redis_url, worker, monkeypatch):
    """What wakes another thread just then holds up the one that sends it."""
    newest = []
    update = HeartbeatThread.update

    def noted(self: HeartbeatThread, **changes: Any) -> None:
        if "last_tok_s" in changes:
            with redis.Redis.from_url(redis_url, decode_responses=True) as connection:
                [(_, entry)] = connection.xrevrange(out_key("g"), count=1)
            newest.append(decode_frame(entry))
        update(self, **changes)

    monkeypatch.setattr(HeartbeatThread, "update", noted)
    story = read_story_of(client, ask("g"))
    wait_until(lambda: newest)
    assert newest == [story.end]


def test_a_prompt_goes_on_from_what_its_own_session_left(client, redis_url, chatterbox):
    with working(redis_url, model=str(chatterbox), backend="numpy", options={}):
        prompt = "once upon a time " * 20
        first = read_story_of(client, ask("cold", prompt, cache_salt="anna"))
        turn = prompt + " and"
        warm = read_story_of(client, ask("warm", turn, cache_salt="anna"))
        other = read_story_of(client, ask("other", turn, cache_salt="ben"))
    assert first.end.timings.cached_tokens == other.end.timings.cached_tokens == 0
    assert warm.end.timings.cached_tokens == len(prompt)
    assert warm.text == other.text


def test_text_stops_before_a_stop_string_and_tokens_at_its_end(client, worker):
    whole = read_story_of(client, ask("whole")).text
    word = whole.split()[7]
    story = read_story_of(client, ask("cut", stop=(word,)))
    assert story.end.finish_reason == "stop"
    assert story.text == whole[: whole.index(word)]
    assert len(story.ids) == len(whole[: whole.index(word) + len(word)].split())


@pytest.mark.slow
def test_an_answer_ends_where_the_context_does(client, redis_url, chatterbox):
    with working(redis_url, model=str(chatterbox), backend="numpy", options={}):
        story = read_story_of(client, ask("g", "x" * 4090, max_tokens=100))
        assert (story.end.finish_reason, len(story.ids)) == ("length", 6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("request_", "code", "complaint"),
    [
        (ask("g", "to " * 140_000), "too_long", "takes at most 131,071; shorten it"),
        (ask("g", model="gpt-7"), "wrong_model", "'gpt-7' is not served here; words is"),
        (ask("g", max_tokens=0), "bad_request", "max_tokens is 0"),
        (ask("g", stop=("",)), "bad_request", "stop string is empty"),
        (structs.replace(ask("g"), prompt=Prompt("a", "b")), "bad_request", "fill-in-the-middle"),
        (BenchRequest("g", "words", "paced", 1, 16, 8, 2), "bad_request", "reads no memory"),
        (BenchRequest("g", "tiny-llama", "tpu", 1, 16, 8, 2), "cannot_run", "no backend 'tpu'"),
        (BenchRequest("g", "gpt-7", "numpy", 1, 16, 8, 2), "cannot_run", "no model 'gpt-7'"),
        (BenchRequest("g", "tiny-llama", "numpy", 1, 16, 8000, 2), "bad_request", "8016 positions"),
        (bench("g", sync="barrier"), "cannot_run", "numpy has no option 'sync'"),
    ],
)
def test_a_request_that_cannot_be_served_is_refused_in_words(client, worker, request_, code, complaint):
    *_, last = answer(client, request_)
    assert isinstance(last, Failed)
    assert last.code == code
    assert complaint in last.message
    assert isinstance(answer(client, ask("next"))[-1], Done), "the worker is no good any more"


def test_what_nobody_had_time_for_is_refused_by_the_clock_of_redis(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        seconds, _ = raw.time()
        entry = {**ask("g").to_entry(), "at": 1000 * (seconds - EXPIRES_S - 1)}
        raw.xadd(INTERACTIVE, entry)
        wait_until(lambda: client.read("g"))
    [frame] = [one.frame for one in client.read("g")]
    assert (frame.code, "no worker was free within 15 minutes" in frame.message) == ("expired", True)


@pytest.mark.slow
@pytest.mark.parametrize("ahead_s", [-1200.0, 1200.0])
def test_a_submitter_whose_clock_differs_by_20_minutes_is_served(client, worker, monkeypatch, ahead_s):
    true = time.time
    with monkeypatch.context() as skewed:
        skewed.setattr(time, "time", lambda: true() + ahead_s)
        client.submit(ask("g"))
    end = read_story(client, "g").end
    assert isinstance(end, Done), end
    assert 0 <= end.timings.queue_ms < 60_000  # not 20 minutes


def test_an_entry_that_cannot_be_read_is_refused_and_gone(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd(INTERACTIVE, {"id": "g", "json": "{"})
        wait_until(lambda: client.read("g"))
        assert client.read("g")[0].frame.code == "bad_request"
        assert raw.xlen(INTERACTIVE) == 0


def test_an_output_that_somebody_spoiled_does_not_stop_the_worker(client, redis_url, worker):
    with redis.Redis.from_url(redis_url) as raw:
        raw.xadd("ml:out:g", {"json": "nonsense"}, id="1-0")
        raw.xadd(INTERACTIVE, ask("g").to_entry())
        wait_until(lambda: raw.xlen(INTERACTIVE) == 0)
    assert isinstance(answer(client, ask("next"))[-1], Done)


def test_a_prompt_that_a_model_without_words_cannot_read_is_refused(client, redis_url):
    with working(redis_url, model="random:tiny-llama", backend="numpy", options={}):
        (last,) = answer(client, ask("g"))
    assert last.code == "bad_request"
    assert "no tokenizer" in last.message


def test_a_mistake_in_the_worker_ends_one_request_only(client, redis_url):
    def clumsy(spec: EngineSpec, loading: Loading) -> Engine:
        engine = open_engine(spec, loading)
        launch, engine.backend.launch = engine.backend.launch, lambda job: failing.pop()() or launch(job)
        return engine

    failing = [lambda: None, lambda: 1 / 0]
    with working(redis_url, opener=clumsy):
        *_, last = answer(client, ask("g1"))
        assert (last.code, last.retryable) == ("internal", True)
        assert "ZeroDivisionError" in last.message
        assert isinstance(answer(client, ask("g2"))[-1], Done)

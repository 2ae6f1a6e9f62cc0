"""The official client against daphne and a worker, each a process of its own."""

from __future__ import annotations

import openai
import pytest

from tests.playground.api.conftest import wait_for_idle


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["words"]
    assert client.models.retrieve("words").owned_by == "monolane"


def test_a_completion(client):
    answer = client.completions.create(model="words", prompt="once upon", max_tokens=12, seed=1)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_streamed_completion_is_the_same_text_in_pieces(client):
    settings = {"model": "words", "prompt": "once upon", "max_tokens": 40, "seed": 1}
    whole = client.completions.create(**settings).choices[0].text
    chunks = list(client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert len(chunks) > 3
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].timings["decode_tok_s"] == pytest.approx(400, rel=0.25)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_leaving_a_stream_gives_the_worker_back(client, live):
    stream = client.completions.create(model="words", prompt="x", max_tokens=4000, stream=True)
    next(stream)
    stream.close()
    wait_for_idle(live.redis_url, timeout=3.0)  # the rest alone would take 10 s


def test_leaving_before_a_whole_answer_gives_the_worker_back(client, live):
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="words", prompt="x", max_tokens=4000, timeout=0.5)
    wait_for_idle(live.redis_url, timeout=3.0)


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.completions.create(model="words", prompt="x", echo=True)
    assert (refused.value.param, refused.value.code) == ("echo", "unsupported_parameter")
    with pytest.raises(openai.APIStatusError) as too_large:
        client.completions.create(model="words", prompt="x" * 100_000)
    assert too_large.value.status_code == 413

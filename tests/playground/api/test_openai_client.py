"""The official Python client against daphne and workers, each a process of its own."""

from __future__ import annotations

import math

import openai
import pytest

from tests.playground.api.conftest import wait_for_idle

pytestmark = pytest.mark.slow

CODER = {"model": "coder", "prompt": "def f(", "max_tokens": 12, "seed": 1}
CHAT = {
    "model": "coder",
    "max_tokens": 12,
    "seed": 1,
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "more"},
    ],
}


@pytest.fixture
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as found:
        yield found


def test_models_are_listed_and_found(client):
    assert [model.id for model in client.models.list()] == ["coder", "words"]
    assert client.models.retrieve("words").owned_by == "monolane"


def test_a_completion(client):
    answer = client.completions.create(model="words", prompt="once upon", max_tokens=12, seed=1)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].text
    assert answer.usage.completion_tokens == 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 12


def test_a_streamed_completion_is_the_same_text_in_pieces(client):
    settings = {"model": "words", "prompt": "once upon", "max_tokens": 800, "seed": 1}
    whole = client.completions.create(**settings).choices[0].text
    chunks = list(client.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    assert len(chunks) > 3
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 800
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-2].timings["decode_tok_s"] == pytest.approx(400, rel=0.25)
    assert {chunk.id for chunk in chunks} == {chunks[0].id}


def test_the_same_seed_is_the_same_text_and_each_choice_has_its_own(client):
    first = client.completions.create(**CODER, n=3)
    again = client.completions.create(**CODER)
    texts = [choice.text for choice in first.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert again.choices[0].text == texts[0]
    assert first.usage.prompt_tokens == again.usage.prompt_tokens


def test_a_stop_string_ends_the_text_before_it(client):
    settings = {"model": "words", "prompt": "once upon", "max_tokens": 40, "seed": 1}
    whole = client.completions.create(**settings).choices[0].text
    stop = whole.split()[5]
    answer = client.completions.create(**settings, stop=[stop, "never"]).choices[0]
    assert answer.finish_reason == "stop"
    assert answer.text == whole[: whole.index(stop)]


def test_a_suffix_is_filled_in_before(client):
    without = client.completions.create(**CODER).usage.prompt_tokens
    answer = client.completions.create(**CODER, suffix="return x")
    assert (
        answer.usage.prompt_tokens == without + len("return x") + 3
    )  # a byte is a token, three mark the gap
    assert answer.choices[0].text


def test_a_model_without_fill_in_the_middle_refuses_a_suffix(client):
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        client.completions.create(model="words", prompt="x", suffix="y")
    assert (refused.value.param, refused.value.code) == ("suffix", "infill_unsupported")


def test_scores_add_up_with_the_text(client):
    answer = client.completions.create(**CODER, temperature=0, logprobs=3).choices[0]
    scores = answer.logprobs
    assert len(scores.tokens) == len(scores.token_logprobs) == len(scores.text_offset) == 12
    for token, logprob, top in zip(scores.tokens, scores.token_logprobs, scores.top_logprobs, strict=True):
        assert top[token] == logprob == max(top.values())  # greedy: the likeliest
        assert sum(map(math.exp, top.values())) <= 1


def test_a_chat_of_several_turns_with_scores(client):
    answer = client.chat.completions.create(**CHAT, logprobs=True, top_logprobs=2)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    spelled = b"".join(bytes(token.bytes or ()) for token in choice.logprobs.content)
    assert spelled.decode("utf-8", "replace") == choice.message.content
    assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    template = "system: be brief\nuser: hi\nassistant: hello\nuser: more\nassistant: "
    assert answer.usage.prompt_tokens == len(template)


def test_a_streamed_chat_is_the_same_text_in_pieces(client):
    whole = client.chat.completions.create(**CHAT).choices[0].message.content
    chunks = list(client.chat.completions.create(**CHAT, stream=True, logprobs=True))
    choices = [chunk.choices[0] for chunk in chunks]
    assert choices[0].delta.role == "assistant"
    assert "".join(choice.delta.content or "" for choice in choices) == whole
    assert sum(len(choice.logprobs.content) for choice in choices if choice.logprobs) == 12
    assert chunks[-1].timings["completion_tokens"] == 12


def test_a_prompt_can_be_counted_before_it_is_sent(client, live):
    answer = client.post(f"{live.url}/tokenize", cast_to=object, body={"model": "coder", "prompt": "def f("})
    assert answer["count"] == client.completions.create(**CODER).usage.prompt_tokens


def test_leaving_a_stream_gives_the_worker_back(client, live):
    stream = client.completions.create(model="words", prompt="x", max_tokens=24_000, stream=True)
    next(stream)
    stream.close()
    wait_for_idle(live.redis_url, timeout=30.0)  # the rest alone would take a minute


def test_leaving_before_a_whole_answer_gives_the_worker_back(client, live):
    with pytest.raises(openai.APITimeoutError):
        client.completions.create(model="words", prompt="x", max_tokens=24_000, n=3, timeout=0.5)
    wait_for_idle(live.redis_url, timeout=30.0)


def test_a_key_works_until_it_is_revoked(client, live):
    key = live.manage("api_key", "make", "a test", "--requests", "3").strip()
    own = client.with_options(api_key=key)
    asked = {"model": "words", "prompt": "x", "max_tokens": 2}
    for _ in range(3):
        own.completions.create(**asked)
    with pytest.raises(openai.RateLimitError) as limited:
        own.completions.create(**asked)
    assert 1 <= int(limited.value.response.headers["retry-after"]) <= 20
    live.manage("api_key", "revoke", key[:11])
    with pytest.raises(openai.AuthenticationError):
        own.models.list()


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="gpt-9"):
        client.completions.create(model="gpt-9", prompt="x")
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="words", prompt="x", n=0)
    assert refused.value.param == "n"
    with pytest.raises(openai.UnprocessableEntityError) as unsupported:
        client.completions.create(model="words", prompt="x", echo=True)
    assert (unsupported.value.param, unsupported.value.code) == ("echo", "unsupported_parameter")
    with pytest.raises(openai.APIStatusError) as too_large:
        client.completions.create(model="words", prompt="x" * 100_000)
    assert too_large.value.status_code == 413
    with pytest.raises(openai.BadRequestError) as too_long:
        client.completions.create(model="coder", prompt="x" * 5000)
    assert too_long.value.code == "context_length_exceeded"

"""The engine of the web-path measurement: its clock has to be right, or the measurement is not."""

from __future__ import annotations

import time

import pytest

from engine.backends import BACKENDS, paced
from engine.backends.base import Job
from engine.backends.paced_models import markdown_model, words_model
from engine.errors import BackendUnavailable, RequestError
from engine.models.catalogue import open_model
from engine.models.prompt import ChatMessage, Prompt


def launch(tokens: int = 50, prompt: tuple[int, ...] = (1, 2), **options: float):
    return paced.open(words_model(), devices=1, options=options).launch(Job(prompt, tokens))


def to_end(one):
    found = []
    while one.outcome is None:
        found += one.poll(0.5)
    return found


def test_tokens_come_at_the_chosen_speed():
    begin = time.monotonic()
    found = to_end(launch(200, tok_s=1000, prefill_ms=50))
    assert 0.249 <= time.monotonic() - begin < 0.6
    assert [t.t_ns - found[0].t_ns for t in found] == [round(i * 1e6) for i in range(200)]
    assert found[0].t_ns == 50_000_000


def test_no_token_comes_before_it_is_due():
    one = launch(100, tok_s=2000, prefill_ms=5)
    begin = time.monotonic_ns()
    while one.outcome is None:
        for token in one.poll(0.1):
            assert token.t_ns <= time.monotonic_ns() - begin + 1_000_000


def test_a_burst_comes_at_once_when_its_last_token_is_due():
    found = to_end(launch(9, tok_s=1000, burst=4, prefill_ms=0))
    assert [(t.t_ns - found[0].t_ns) // 1_000_000 for t in found] == [0, 4, 4, 4, 4, 8, 8, 8, 8]


def test_the_first_token_falls_on_the_grid():
    def beside_the_grid() -> int:
        begin = time.monotonic_ns()
        first = to_end(launch(1, align_ms=50, prefill_ms=10))[0]
        return abs((begin + first.t_ns + 25_000_000) % 50_000_000 - 25_000_000)

    # The launch begins later than `begin` where the machine is busy, which shows as being early.
    assert min(beside_the_grid() for _ in range(5)) < 2_000_000


def test_a_continued_generation_has_the_same_tokens():
    whole = [t.id for t in to_end(launch(20, tok_s=1e6))]
    rest = to_end(launch(12, prompt=(1, 2, *whole[:8]), tok_s=1e6))
    assert [t.id for t in rest] == whole[8:]


def test_a_stopped_launch_ends_as_cancelled():
    one = launch(10_000, tok_s=100)
    one.stop()
    assert one.poll(1.0) == ()
    assert one.outcome.finish_reason == "cancelled"


def test_every_word_is_readable_and_comes_back_as_text():
    model = words_model()
    ids = [t.id for t in to_end(launch(100, tok_s=1e6))]
    text = model.tokenizer.decode(ids)
    assert len(text.split()) == 100
    assert model.tokenizer.encode(text.strip()) == ids


def test_lines_end_where_they_shall():
    model = words_model()
    text = model.tokenizer.decode([t.id for t in to_end(launch(20, (1,) * 5, tok_s=1e6, line=5))])
    assert [len(line.split()) for line in text.splitlines()] == [4, 4, 4, 4]
    assert text.endswith("\n")


def test_a_models_own_vocabulary_can_be_used_if_it_has_one():
    with pytest.raises(BackendUnavailable, match="no tokenizer"):
        paced.open(open_model("random:tiny-llama"), devices=1, options={})


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"speed": 1}, "no option 'speed'"),
        ({"tok_s": 0}, "tok_s is 0"),
        ({"tok_s": "fast"}, "not a number"),
        ({"prefill_ms": -1}, "prefill_ms is -1"),
        ({"tok_s": float("nan")}, "tok_s is nan"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(options, complaint):
    with pytest.raises(BackendUnavailable, match=complaint):
        launch(**options)


def test_it_is_no_backend_that_anybody_meets_by_accident():
    assert "paced" not in BACKENDS
    backend = paced.open(words_model(), devices=1, options={})
    with pytest.raises(RequestError, match="computes no model"):
        backend.logits((1,))
    with pytest.raises(RequestError, match="reads no memory"):
        backend.measure_bandwidth()


QUESTION = ChatMessage("user", "How is a file read?")


def recited(prompt: list[int], tokens: int) -> list[int]:
    backend = paced.open(markdown_model(), devices=1, options={"tok_s": 1e6})
    return [token.id for token in to_end(backend.launch(Job(tuple(prompt), tokens)))]


def test_a_chat_is_answered_in_markdown_from_its_beginning():
    tokenizer = markdown_model().tokenizer
    prompt = tokenizer.encode_prompt(Prompt(messages=(QUESTION,)))
    text = tokenizer.decode(recited(prompt, 400))
    assert text.startswith("## Reading a file line by line\n\nOpen it in a `with` block")
    assert (
        '\n```python\ndef first_match(path, word):\n    with open(path, encoding="utf-8") as lines:\n' in text
    )
    assert text.count("## Reading") == 2  # over and over


def test_a_recital_goes_on_where_a_launch_left_it():
    prompt = markdown_model().tokenizer.encode_prompt(Prompt(messages=(QUESTION,)))
    whole = recited(prompt, 50)
    assert recited([*prompt, *whole[:20]], 30) == whole[20:]

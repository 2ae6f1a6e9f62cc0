"""A launch that goes on from a kept sequence gives the tokens of one that computes everything."""

from __future__ import annotations

import numpy as np
import pytest

from engine.backends.base import Job, Outcome
from engine.backends.cuda.backend import CudaBackend
from engine.sampling import SamplingParams
from tests.gpu.models import CONFIGS, Model, RandomWeights
from tests.gpu.test_small_models import Open, sequence

OWNER = "anna"


def answer(backend: CudaBackend, tokens: list[int], owner: str, count: int = 32) -> tuple[list[int], Outcome]:
    sampling = SamplingParams(temperature=0.7, seed=11)
    launch = backend.launch(Job(tuple(tokens), count, sampling, cache_salt=owner))
    found: list[int] = []
    while fresh := launch.poll(5.0):
        found += [token.id for token in fresh]
    launch.close()
    assert launch.outcome is not None
    return found, launch.outcome


@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_prompt_again_gives_the_same_tokens_from_its_last(opened: Open, name: str) -> None:
    config = CONFIGS[name]
    backend = opened(Model(config, RandomWeights(config, 3)))
    prompt = sequence(config.vocab, min(config.context - 40, 150))

    cold, before = answer(backend, prompt, "")
    first, _ = answer(backend, prompt, OWNER)
    warm, after = answer(backend, prompt, OWNER)

    assert before.cached_tokens == 0
    assert after.cached_tokens == len(prompt) - 1
    assert after.cached_tokens + after.prefill_tokens == len(prompt)
    assert first == cold
    assert warm == cold


@pytest.mark.parametrize("name", ["test-llama", "test-gemma2"])
def test_a_prompt_that_was_stopped_midway_is_kept_no_further_than_it_came(opened: Open, name: str) -> None:
    config = CONFIGS[name]
    backend = opened(Model(config, RandomWeights(config, 3)))
    prompt = sequence(config.vocab, min(config.context - 40, 400))
    cold, _ = answer(backend, prompt, "")

    stopped = backend.launch(Job(tuple(prompt), 8, cache_salt=OWNER))
    stopped.stop()
    stopped.close()
    again, _ = answer(backend, prompt, OWNER)

    assert again == cold


@pytest.mark.parametrize("name", ["test-llama", "head-dim-96-tied", "test-laneformer"])
def test_a_conversation_goes_on_after_its_last_answer(opened: Open, name: str) -> None:
    """The answer's keys and values come from decoding, so a cold prompt's differ by their rounding."""
    config = CONFIGS[name]
    backend = opened(Model(config, RandomWeights(config, 3)))
    prompt = sequence(config.vocab, 100)
    said, _ = answer(backend, prompt, OWNER, 60)
    longer = [*prompt, *said, *sequence(config.vocab, 9, seed=8)]

    warm, outcome = answer(backend, longer, OWNER, 8)
    cold, _ = answer(backend, longer, "", 8)

    assert outcome.cached_tokens > len(prompt)
    assert warm == cold


def test_a_branch_leaves_the_longer_sequence_as_it_was(opened: Open) -> None:
    config = CONFIGS["test-llama"]
    backend = opened(Model(config, RandomWeights(config, 3)))
    long = sequence(config.vocab, 300)
    branch = [*long[:130], *sequence(config.vocab, 20, seed=9)]
    wanted, _ = answer(backend, long, "")
    answer(backend, long, OWNER)

    branched, outcome = answer(backend, branch, OWNER)

    assert outcome.cached_tokens == 130
    assert branched == answer(backend, branch, "")[0]
    again, outcome = answer(backend, long, OWNER)
    assert outcome.cached_tokens > 200
    assert again == wanted


def test_nobody_goes_on_from_another_owners_sequence(opened: Open) -> None:
    config = CONFIGS["test-llama"]
    backend = opened(Model(config, RandomWeights(config, 3)))
    prompt = sequence(config.vocab, 200)
    answer(backend, prompt, OWNER)
    assert answer(backend, prompt, "ben")[1].cached_tokens == 0


def test_logits_and_kept_sequences_do_not_disturb_each_other(opened: Open) -> None:
    config = CONFIGS["test-llama"]
    backend = opened(Model(config, RandomWeights(config, 3)))
    prompt = sequence(config.vocab, 200)
    wanted = backend.logits(prompt)
    first, _ = answer(backend, prompt, OWNER)
    assert np.array_equal(backend.logits(prompt), wanted)
    assert answer(backend, prompt, OWNER)[0] == first

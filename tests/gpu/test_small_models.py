"""Every feature on small shapes, against the NumPy reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.memory import share_table
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.reference import Reference
from engine.sampling import SamplingParams, choose
from tests.gpu.models import (
    CONFIGS,
    LANEFORMER,
    LLAMA,
    Bf16Weights,
    EqualHead,
    Model,
    RandomWeights,
    StoredWeights,
)
from tests.gpu.scored import last_logits

Open = Callable[..., CudaBackend]
TOLERANCE = 2e-3


def sequence(vocab: int, length: int, seed: int = 5) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab, length).tolist()


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def reference_logits(model: Model, tokens: list[int]) -> np.ndarray:
    reference = Reference(model.weights)
    return reference.forward(tokens, reference.new_cache(len(tokens)))


def generated(backend: CudaBackend, job: Job) -> list[int]:
    launch = backend.launch(job)
    found: list[int] = []
    while True:
        tokens = launch.poll(5.0)
        found += [t.id for t in tokens]
        if not tokens:
            break
    launch.close()
    assert launch.outcome is not None
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_decode_and_prefill_give_the_reference_logits(opened: Open, name: str) -> None:
    config = CONFIGS[name]
    model = Model(config, RandomWeights(config, 3))
    backend = opened(model)
    tokens = sequence(config.vocab, 101)
    wanted = reference_logits(model, tokens)
    after_prefill = last_logits(backend, tokens)  # first: decode leaves the very keys that prefill should
    print(name, "prefill", relative_error(after_prefill, wanted[-1]))
    assert relative_error(after_prefill, wanted[-1]) < TOLERANCE
    found = backend.logits(tokens)
    print(name, "decode", relative_error(found, wanted))
    assert relative_error(found, wanted) < TOLERANCE


def test_bf16_weights_keep_their_own_arithmetic(opened: Open) -> None:
    model = Model(LLAMA, Bf16Weights(LLAMA, 3))
    backend = opened(model)
    tokens = sequence(LLAMA.vocab, 40)
    assert relative_error(backend.logits(tokens), reference_logits(model, tokens)) < TOLERANCE


def test_stored_weights_are_packed_like_random_ones(opened: Open) -> None:
    tokens = sequence(LANEFORMER.vocab, 10)
    made = opened(Model(LANEFORMER, RandomWeights(LANEFORMER, 9))).logits(tokens)
    packed = opened(Model(LANEFORMER, StoredWeights(LANEFORMER, 9))).logits(tokens)
    assert np.array_equal(made, packed)


@pytest.mark.parametrize("length", [1, 2, 31, 32, 33, 63, 64, 65, 97, 500])
def test_prefill_of_any_length_leaves_the_cache_that_decode_leaves(opened: Open, length: int) -> None:
    model = Model(LLAMA, RandomWeights(LLAMA, 4))
    backend = opened(model)
    tokens = sequence(LLAMA.vocab, length, seed=length)
    wanted = reference_logits(model, tokens)[-1]
    assert relative_error(last_logits(backend, tokens), wanted) < TOLERANCE


@pytest.mark.parametrize(
    "name", ["test-llama", "head-dim-96-tied", "head-dim-128", "half-a-unit", "wide-heads", "test-laneformer"]
)
def test_heads_split_over_as_many_sms_as_can_be_give_the_same_logits(opened: Open, name: str) -> None:
    config = CONFIGS[name]
    model = Model(config, RandomWeights(config, 3))
    tokens = sequence(config.vocab, 200)
    found = opened(model, blocks_a_split=1).logits(tokens)
    assert relative_error(found, reference_logits(model, tokens)) < TOLERANCE


def test_barrier_mode_gives_the_same_bits(opened: Open) -> None:
    model = Model(LANEFORMER, RandomWeights(LANEFORMER, 4))
    tokens = sequence(LANEFORMER.vocab, 40)
    assert np.array_equal(opened(model).logits(tokens), opened(model, sync="barrier").logits(tokens))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.8, seed=2**40 + 17),
        SamplingParams(temperature=1.0, top_k=5, seed=1),
        SamplingParams(temperature=1.2, top_p=0.7, seed=2),
        SamplingParams(temperature=0.9, min_p=0.1, repetition_penalty=1.1, seed=3),
        SamplingParams(temperature=1.5, top_k=50, top_p=0.9, min_p=0.02, seed=4),
        SamplingParams(temperature=0.8, top_k=50, top_p=0.5, seed=5),
        SamplingParams(temperature=5.0, top_k=3, seed=6),
        SamplingParams(temperature=5.0, top_k=400, top_p=0.3, seed=7),
        SamplingParams(temperature=0.05, top_k=999, top_p=0.99, seed=8),
        SamplingParams(temperature=3.0, min_p=0.9, top_p=0.999, seed=9),
        SamplingParams(frequency_penalty=0.7, presence_penalty=-0.3),
        SamplingParams(
            temperature=0.9, top_p=0.9, top_k=40, min_p=0.01, repetition_penalty=1.2, seed=10,
            frequency_penalty=-0.5, presence_penalty=0.6, logit_bias={7: 4.0, 999: -100.0, 11: 5.5},
        ),
        SamplingParams(temperature=1.0, top_k=1, seed=11, logit_bias={3: 50.0, 8: 50.0}),
    ],
    ids=repr,
)  # fmt: skip
def test_tokens_are_those_that_the_shared_rule_chooses(opened: Open, sampling: SamplingParams) -> None:
    model = Model(LLAMA, RandomWeights(LLAMA, 6))
    backend = opened(model)
    prompt = sequence(LLAMA.vocab, 45)
    found = generated(backend, Job(tuple(prompt), 120, sampling, sampled=5))
    assert len(found) == 120
    history = list(prompt)
    logits = backend.logits(prompt + found)
    for i, token in enumerate(found):
        wanted = choose(logits[len(prompt) - 1 + i], sampling, history, len(history), history[40:])
        assert wanted == token, f"token {i}"
        history.append(token)


@pytest.mark.parametrize("tied", [2, 60, 1000])
def test_a_threshold_among_equal_scores_keeps_them_all(opened: Open, tied: int) -> None:
    """The search for top-k's threshold must end where no score parts them."""
    bias = {i * (1000 // tied): 90.0 for i in range(tied)}
    sampling = SamplingParams(temperature=1e3 / 100, top_k=50, top_p=0.97, seed=3, logit_bias=bias)
    config = replace(LLAMA, name="equal-scores")
    backend = opened(Model(config, EqualHead(config, 6)))
    prompt = sequence(config.vocab, 12)
    found = generated(backend, Job(tuple(prompt), 40, sampling))
    history = list(prompt)
    logits = backend.logits(prompt + found)
    for i, token in enumerate(found):
        assert choose(logits[len(prompt) - 1 + i], sampling, history, len(history)) == token
        history.append(token)


def test_a_draw_with_filters_gives_the_same_tokens_every_time(opened: Open) -> None:
    backend = opened(Model(LANEFORMER, RandomWeights(LANEFORMER, 8)))
    prompt = tuple(sequence(LANEFORMER.vocab, 20))
    params = SamplingParams(temperature=1.3, top_k=60, top_p=0.9, seed=1)
    first = generated(backend, Job(prompt, 150, params))
    for other in (SamplingParams(), SamplingParams(temperature=1.0, min_p=0.2, seed=4)) * 3:
        generated(backend, Job(prompt, 31, other))
        assert generated(backend, Job(prompt, 150, params)) == first


def test_a_launch_stops_at_a_stop_id_and_at_its_budget(opened: Open) -> None:
    backend = opened(Model(LLAMA, RandomWeights(LLAMA, 6)))
    prompt = tuple(sequence(LLAMA.vocab, 10))
    free = generated(backend, Job(prompt, 30))
    stop = free[12]
    launch = backend.launch(Job(prompt, 30, stop_ids=frozenset([stop, 7])))
    outcome = launch.wait()
    assert outcome.finish_reason == "stop"
    assert [t.id for t in launch.poll(0)] == free[: free.index(stop)]
    launch.close()


def test_a_launch_that_is_asked_to_stop_does_so_within_a_few_tokens(opened: Open) -> None:
    backend = opened(Model(LLAMA, RandomWeights(LLAMA, 6)))
    launch = backend.launch(Job(tuple(sequence(LLAMA.vocab, 10)), 480))
    seen = len(launch.poll(2.0))
    launch.stop()
    outcome = launch.wait()
    seen += len(launch.poll(0))
    launch.close()
    assert outcome.finish_reason in ("cancelled", "length")
    assert seen <= 480


def test_repeated_launches_over_used_buffers_give_the_same_bits(opened: Open) -> None:
    model = Model(LANEFORMER, RandomWeights(LANEFORMER, 8))
    backend = opened(model)
    tokens = sequence(LANEFORMER.vocab, 120)
    other = sequence(LANEFORMER.vocab, 200, seed=77)
    first = backend.logits(tokens)
    greedy = generated(backend, Job(tuple(tokens), 50))
    for _ in range(5):
        generated(backend, Job(tuple(other), 30, SamplingParams(temperature=1.0, top_p=0.9)))
        assert np.array_equal(backend.logits(tokens), first)
        assert generated(backend, Job(tuple(tokens), 50)) == greedy


@pytest.mark.parametrize("tiles_from", [1, 1000], ids=["tiles", "shares"])
@pytest.mark.parametrize("name", ["test-llama", "test-experts", "test-gpt-oss"])
def test_whatever_buffers_held_before_does_not_show(opened: Open, name: str, tiles_from: int) -> None:
    """Cache, prefill buffers and scores hold NaNs before the launch; mailboxes keep their protocol."""
    config = CONFIGS[name]
    backend = opened(Model(config, RandomWeights(config, 8)), tiles_from=tiles_from)
    tokens = sequence(config.vocab, 70)
    clean = last_logits(backend, tokens)
    memory, sizes = backend.device_context.memory, prefill_bytes(backend.layout)
    for name, size in {"kv": memory.kv_bytes, **sizes}.items():
        if name.startswith("operand_"):  # columns that no one writes are the zeros they were allocated with
            continue
        backend.device.fill(getattr(memory, name), size, 0xFF)
    backend.device.synchronise()
    assert np.array_equal(last_logits(backend, tokens), clean)


def test_a_stuck_kernel_ends_with_a_report_and_the_next_launch_runs(opened: Open) -> None:
    from engine.errors import BackendFailure

    model = Model(LLAMA, RandomWeights(LLAMA, 8))
    backend = opened(model)
    tokens = sequence(LLAMA.vocab, 20)
    clean = backend.logits(tokens)
    backend.device_context.spin_budget_s = 0.05
    # Readers now wait for a parity that the mailboxes' last pass already had.
    backend.device_context.serial += 1
    backend.device.fill(backend.device_context.memory.shares, 5 * 8, 0)  # SM 0 forgets its rows
    launch = backend.launch(Job(tuple(tokens), 5))
    with pytest.raises(BackendFailure, match="waited over"):
        launch.wait()
    launch.close()
    backend.device.upload(backend.device_context.memory.shares, share_table(backend.layout.plan))
    backend.device_context.spin_budget_s = 1.5
    assert np.array_equal(backend.logits(tokens), clean)


def test_prefill_leaves_the_same_keys_and_values_each_time(opened: Open) -> None:
    """A ring slot that was given back before its last load showed on this shape, once in 50 launches."""
    config = replace(LLAMA, name="14-heads", heads=14)
    backend = opened(Model(config, RandomWeights(config, 3)))
    device, memory = backend.device, backend.device_context.memory
    tokens = sequence(config.vocab, 65)

    def keys_and_values() -> np.ndarray:
        launch = backend.launch(Job(tuple(tokens), 1))
        launch.wait()
        launch.close()
        return device.download(memory.kv, (backend.layout.kv_halves,), np.uint16)

    first = keys_and_values()
    for _ in range(1000):
        np.testing.assert_array_equal(keys_and_values(), first)

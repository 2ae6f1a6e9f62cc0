"""A model on several GPUs: virtual ones on any machine with a GPU, real ones where there are so many.

Virtual GPUs are parts of one GPU's SMs that talk through the mailboxes, launches and barriers of real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import Job
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.cache_content import keys_and_values
from engine.backends.cuda.launch import DeviceContext
from engine.backends.cuda.memory import share_table
from engine.backends.cuda.tape import Matrix
from engine.errors import BackendFailure
from engine.kv_cache import KeysAndValues
from engine.measuring.verification import agrees
from engine.models.config import Lanes, ModelConfig
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights
from engine.sampling import SamplingParams
from tests.gpu.cache import require_close
from tests.gpu.machine import gpus, require_gpus
from tests.gpu.models import CONFIGS, FOUR_HEADS, LANEFORMER, Model, StoredWeights
from tests.gpu.scored import last_logits
from tests.gpu.test_prefill import LIMITS, WAYS, prefill, wanted_cache
from tests.gpu.test_small_models import TOLERANCE, generated, reference_logits, relative_error, sequence
from tools.bench_exchange.measure import measure

Open = Callable[..., CudaBackend]
WIDE = replace(
    LANEFORMER,
    name="wide",
    hidden=4352,
    layers=2,
    windows=(0, 0),
    lanes=replace(LANEFORMER.lanes, count=4, delay=1),
)
"""So many columns that an SM of a quarter of a GPU joins more pieces of four than a warp has threads."""
MODELS = {
    "laneformer": LANEFORMER,
    "early": CONFIGS["early"],
    "no-delay": CONFIGS["no-delay"],
    "no-mlp-exchange": CONFIGS["no-mlp-exchange"],
    "vocabulary-of-lanes": CONFIGS["vocabulary-of-lanes"],
    "sum-of-lanes": CONFIGS["sum-of-lanes"],
    "sixteen-lanes": CONFIGS["sixteen-lanes"],
    "wide": WIDE,
    "llama": FOUR_HEADS,
    "a KV head for all": replace(FOUR_HEADS, name="one-kv-head", kv_heads=1, qkv_bias=True),
    "biases and normed heads": replace(FOUR_HEADS, name="biased", qkv_bias=True, qk_norm=True),
    "norms after modules": replace(CONFIGS["test-gemma2"], kv_heads=4),
    "llama, tied head, odd vocabulary": replace(FOUR_HEADS, name="tied", tied_head=True, vocab=1003),
}


@pytest.fixture(params=[(2, True), (4, True), (2, False), (4, False)], ids=["2v", "4v", "2", "4"])
def sharded(request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a model on several GPUs, virtual or real."""
    devices, virtual = request.param
    if not virtual:
        require_gpus(devices)
    backends: list[CudaBackend] = []

    def open_model(model: Model, **options: object) -> CudaBackend:
        backends.append(CudaBackend(model, {**options, "virtual": virtual}, devices=devices))
        return backends[-1]

    yield open_model
    for backend in backends:
        backend.close()


@pytest.mark.parametrize("name", MODELS)
def test_decode_and_prefill_over_gpus_give_the_reference_logits(sharded: Open, name: str) -> None:
    config = MODELS[name]
    model = Model(config, RandomWeights(config, 3))
    backend = sharded(model)
    tokens = sequence(config.vocab, 101)
    wanted = reference_logits(model, tokens)
    assert relative_error(backend.logits(tokens), wanted) < TOLERANCE
    assert relative_error(last_logits(backend, tokens), wanted[-1]) < TOLERANCE


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name", ["laneformer", "early", "no-delay", "no-mlp-exchange", "llama", "norms after modules"]
)
def test_prefill_leaves_each_gpu_the_keys_and_values_of_its_heads(sharded: Open, name: str, way: str) -> None:
    model = Model(MODELS[name], RandomWeights(MODELS[name], 3))
    backend = sharded(model, tiles_from=WAYS[way])
    tokens = sequence(model.config.vocab, 201)
    wanted = wanted_cache(model, tokens)
    prefill(backend, tokens, 0, len(tokens))
    found = [left_on(context, len(tokens)) for context in backend.device_contexts]
    together = KeysAndValues(*(np.concatenate([getattr(f, n) for f in found], 1) for n in ("keys", "values")))
    require_close(together, wanted, LIMITS["f16"], f"{name} by {way}")


@pytest.mark.parametrize("way", WAYS)
def test_gpus_that_are_apart_by_chunks_leave_the_bits_of_one_pass(sharded: Open, way: str) -> None:
    model = Model(LANEFORMER, RandomWeights(LANEFORMER, 3))
    tokens = sequence(LANEFORMER.vocab, 230)
    whole, parts = (
        sharded(model, tiles_from=WAYS[way]),
        sharded(model, tiles_from=WAYS[way], prefill_chunk=128),
    )
    prefill(whole, tokens, 0, len(tokens))
    for _ in range(3):
        prefill(parts, tokens, 0, len(tokens))
        for one, other in zip(whole.device_contexts, parts.device_contexts, strict=True):
            found, expected = left_on(other, len(tokens)), left_on(one, len(tokens))
            assert np.array_equal(found.keys, expected.keys)
            assert np.array_equal(found.values, expected.values)


def left_on(context: DeviceContext, positions: int) -> KeysAndValues:
    context.device.activate()
    words = context.device.download(context.memory.kv, (context.layout.kv_halves,), np.uint16)
    return keys_and_values(words, context.layout.config, positions)


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(),
        SamplingParams(repetition_penalty=1.3),
        SamplingParams(temperature=0.8, seed=2**40 + 17),
        SamplingParams(temperature=1.5, top_k=50, top_p=0.9, min_p=0.02, seed=4),
    ],
    ids=["greedy", "penalty", "temperature", "filters"],
)
def test_tokens_are_those_of_one_gpu(sharded: Open, opened: Open, sampling: SamplingParams) -> None:
    model = Model(LANEFORMER, RandomWeights(LANEFORMER, 6))
    job = Job(tuple(sequence(LANEFORMER.vocab, 45)), 60, sampling)
    assert generated(sharded(model), job) == generated(opened(model), job)


def test_stored_weights_are_sharded_like_random_ones(sharded: Open) -> None:
    for config in (LANEFORMER, FOUR_HEADS):
        tokens = sequence(config.vocab, 10)
        made = sharded(Model(config, RandomWeights(config, 9))).logits(tokens)
        packed = sharded(Model(config, StoredWeights(config, 9))).logits(tokens)
        assert np.array_equal(made, packed)


@pytest.mark.parametrize("config", [LANEFORMER, FOUR_HEADS], ids=["laneformer", "llama"])
def test_repeated_launches_over_used_mailboxes_give_the_same_bits(sharded: Open, config: ModelConfig) -> None:
    backend = sharded(Model(config, RandomWeights(config, 8)))
    tokens = sequence(config.vocab, 80)
    first = backend.logits(tokens)
    for _ in range(5):
        generated(backend, Job(tuple(tokens[:33]), 7, SamplingParams(temperature=1.0, top_p=0.9)))
        assert np.array_equal(backend.logits(tokens), first)


def test_a_launch_stops_on_all_gpus_at_a_stop_id_and_when_asked(sharded: Open) -> None:
    backend = sharded(Model(LANEFORMER, RandomWeights(LANEFORMER, 6)))
    prompt = tuple(sequence(LANEFORMER.vocab, 10))
    free = generated(backend, Job(prompt, 30))
    launch = backend.launch(Job(prompt, 30, stop_ids=frozenset([free[12]])))
    assert launch.wait().finish_reason == "stop"
    assert [t.id for t in launch.poll(0)] == free[: free.index(free[12])]
    launch.close()
    launch = backend.launch(Job(prompt, 240))
    launch.poll(2.0)
    launch.stop()
    assert launch.wait().finish_reason in ("cancelled", "length")
    launch.close()


def test_a_gpu_that_stands_still_ends_the_request_on_all_and_the_next_one_runs(sharded: Open) -> None:
    backend = sharded(Model(LANEFORMER, RandomWeights(LANEFORMER, 8)))
    tokens = sequence(LANEFORMER.vocab, 20)
    clean = backend.logits(tokens)
    last = backend.device_contexts[-1]
    for context in backend.device_contexts:
        context.spin_budget_s = 0.2
        context.serial += 1
    shares = share_table(backend.layout.plan)
    forgetful = shares.copy()
    forgetful[np.flatnonzero(shares[:, Matrix.ATTN_OUT, 1])[0]] = 0  # an SM that has rows forgets them
    last.device.activate()
    last.device.upload(last.memory.shares, forgetful)
    launch = backend.launch(Job(tuple(tokens), 5))
    with pytest.raises(BackendFailure, match=r"GPU \d, SM \d+, warp \d waited over"):
        launch.wait()
    launch.close()
    last.device.activate()
    last.device.upload(last.memory.shares, shares)
    for context in backend.device_contexts:
        context.spin_budget_s = 1.5
    assert np.array_equal(backend.logits(tokens), clean)


@pytest.mark.parametrize("name", ["no-delay", "laneformer", "sum-of-lanes"])
def test_the_profile_accounts_for_the_whole_token_and_says_what_waits_for_other_gpus(
    sharded: Open, name: str
) -> None:
    backend = sharded(Model(MODELS[name], RandomWeights(MODELS[name], 8)))
    launch = backend.launch(Job(tuple(sequence(512, 20)), 40, profile=True))
    phases = launch.wait().phases_us
    times = [token.t_ns / 1e3 for token in launch.poll(0)]
    launch.close()
    token_us = (times[-1] - times[0]) / (len(times) - 1)
    parts = [part for time in phases.values() for part in (time.work, time.wait_local, time.wait_peer)]
    assert all(0 <= part < token_us for part in parts)
    assert sum(parts) == pytest.approx(token_us, rel=0.2)
    assert phases["qkv"].wait_peer == 0
    assert phases["head"].wait_peer > 0  # in some of so many passes on so many SMs another GPU is the last
    if name == "no-delay":
        assert phases["attn_out"].wait_peer > 0


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_exchanges_add_up_exactly(devices: int) -> None:
    """`measure` refuses a wrong sum."""
    virtual = gpus() < devices
    found = measure(devices, (4, 1000, 3072), 2, virtual=virtual)
    assert all(0 < time.rows_us <= 100 for time in found)


@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("lanes", [True, False], ids=["dtp", "tp"])
def test_the_full_size_model_says_the_same_on_several_gpus(opened: Open, devices: int, lanes: bool) -> None:
    require_gpus(devices)
    config = load_preset("laneformer-2b").config
    config = config if lanes else replace(config, name="plain", lanes=Lanes())
    model = Model(config, RandomWeights(config, 0))
    tokens = sequence(config.vocab, 300)
    one, several = opened(model), CudaBackend(model, {}, devices=devices)
    try:
        assert relative_error(last_logits(several, tokens), last_logits(one, tokens)) < 1e-3
        job = Job(tuple(tokens[:65]), 64)
        found = generated(several, job)
        rows = one.logits([*job.tokens, *found[:-1]])[len(job.tokens) - 1 :]
        assert relative_error(several.logits([*job.tokens, *found[:-1]])[len(job.tokens) - 1 :], rows) < 1e-4
        assert agrees(rows, found)
    finally:
        several.close()

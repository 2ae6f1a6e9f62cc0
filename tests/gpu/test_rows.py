"""Several requests in one launch on a GPU: each gets what it gets alone, whoever comes and goes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from engine.backends.base import Job, Launch
from engine.backends.cuda.backend import CudaBackend
from engine.backends.cuda.memory import share_table
from engine.backends.cuda.tape import Matrix
from engine.errors import BackendFailure
from engine.models.storage import Storage
from engine.models.weights import RandomWeights, Weights
from engine.sampling import PLAYGROUND, SamplingParams
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.machine import require_gpus
from tests.gpu.models import CONFIGS, FOUR_HEADS, Model, RoutedWeights
from tests.gpu.test_packed import SHAPES
from tests.gpu.test_small_models import Open, sequence

ROWS = 8
MODELS = {config.name: config for config in (*CONFIGS.values(), FOUR_HEADS)}
PACKED = (Storage.FP8_BLOCK, Storage.Q8_0, Storage.MXFP4, Storage.Q4_K, Storage.Q6_K)
SAMPLINGS = (
    SamplingParams(),
    PLAYGROUND,
    SamplingParams(temperature=0.9, top_k=40, repetition_penalty=1.2, frequency_penalty=0.3),
    SamplingParams(temperature=0.8),
)


def follow(launch: Launch) -> list[int]:
    found: list[int] = []
    while True:
        ended = launch.outcome is not None
        fresh = launch.poll(5.0)
        found += [token.id for token in fresh]
        if ended and not fresh:
            return found


def jobs(vocab: int) -> list[Job]:
    """Prompts of a token, of one piece and of several; greedy, sampled and filtered."""
    lengths = (1, 40, 130, 300, 7, 700, 64, 257)
    return [
        Job(tuple(sequence(vocab, length, seed=i)), 30 + 40 * (i % 3), replace(SAMPLINGS[i % 4], seed=i))
        for i, length in enumerate(lengths)
    ]


def opened_with_rows(opened: Open, name: str, devices: int = 1, *, virtual: bool = True) -> CudaBackend:
    config = replace(MODELS[name], context=1024)
    return opened_with(opened, RandomWeights(config, 3), devices=devices, virtual=virtual)


def opened_with(
    opened: Open, weights: Weights, rows: int = ROWS, *, devices: int = 1, virtual: bool = True
) -> CudaBackend:
    """Of several GPUs each is a part of the first one if they are `virtual`."""
    if not virtual:
        require_gpus(devices)
    backend = opened(Model(weights.config, weights), devices, rows=rows, virtual=virtual and devices > 1)
    assert backend.rows == rows
    return backend


@pytest.mark.parametrize("name", ["test-llama", "test-laneformer", "halves-of-tiles"])
def test_a_full_house_gives_everyone_what_they_get_alone(opened: Open, name: str) -> None:
    check_house(opened_with_rows(opened, name))


@pytest.mark.parametrize(
    "name", ["four-heads", "test-laneformer", "vocabulary-of-lanes", "test-experts", "test-gpt-oss"]
)
@pytest.mark.parametrize(
    ("devices", "virtual"), [(2, True), (4, True), (2, False), (4, False)], ids=["2v", "4v", "2", "4"]
)
def test_rows_on_several_gpus_get_what_each_gets_alone(
    opened: Open, name: str, devices: int, virtual: bool
) -> None:
    check_house(opened_with_rows(opened, name, devices, virtual=virtual))


@pytest.mark.parametrize("storage", [Storage.FP8_BLOCK, Storage.Q8_0])
def test_rows_of_packed_weights_on_several_gpus_get_what_each_gets_alone(
    opened: Open, storage: Storage
) -> None:
    config = replace(SHAPES["whole blocks"], name=f"halves of {storage.name}", context=1024)
    backend = opened_with(opened, RandomPacked(config, all_in(storage), 3), 4, devices=2)
    assert backend.storage("layers.0.w_down") is storage
    check_house(backend)


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("storage", PACKED)
def test_packed_weights_give_everyone_what_they_give_one(opened: Open, storage: Storage, rows: int) -> None:
    """Rows of 512 and 1,536 columns: whole blocks of every format, and as few tiles as warpgroups meet."""
    config = replace(SHAPES["whole blocks"], name=f"rows of {storage.name}", context=1024)
    backend = opened_with(opened, RandomPacked(config, all_in(storage), 3), rows)
    assert backend.storage("layers.0.w_down") is storage
    check_house(backend)


@pytest.mark.parametrize("storage", PACKED)
def test_packed_vectors_that_come_in_windows_give_the_same(opened: Open, storage: Storage) -> None:
    """Of 2,048 columns with eight rows, and as many tiles a group as there may be."""
    one_layer = replace(SHAPES["whole blocks"], context=1024, layers=1, windows=())
    config = replace(one_layer, name=f"windows of {storage.name}", hidden=2304, ffn=8192)
    check_house(opened_with(opened, RandomPacked(config, all_in(storage), 3)))


@pytest.mark.parametrize("rows", [2, 4, 8])
@pytest.mark.parametrize("name", ["test-experts", "test-gpt-oss", "more-experts-than-sms"])
def test_experts_give_everyone_what_they_give_one(opened: Open, name: str, rows: int) -> None:
    weights = RandomWeights(replace(CONFIGS[name], context=1024), 3)
    check_house(opened_with(opened, weights, rows))


@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize(
    ("name", "storage", "ffn"),
    [
        ("test-experts", Storage.FP8_BLOCK, 128),
        ("test-experts", Storage.FP8_BLOCK, 256),  # gates and ups of all requests are one product
        ("test-gpt-oss", Storage.MXFP4, 128),
    ],
)
def test_packed_experts_give_everyone_what_they_give_one(
    opened: Open, name: str, storage: Storage, ffn: int, rows: int
) -> None:
    config = replace(CONFIGS[name], name=f"{name} in {storage.name}, {ffn}", context=1024, ffn=ffn)
    weights = RandomPacked(config, lambda name: storage if ".experts." in name else Storage.F16, 3)
    backend = opened_with(opened, weights, rows)
    assert backend.storage("layers.0.experts.0.w_down") is storage
    check_house(backend)


@pytest.mark.parametrize("row", [0.0, 1.0], ids=["all scores equal", "all meet the same"])
def test_requests_that_meet_the_same_experts_get_what_they_get_alone(opened: Open, row: float) -> None:
    config = replace(CONFIGS["test-experts"], name=f"routed by {row:g}", context=1024)
    assert config.experts is not None
    router = [row * expert for expert in range(config.experts.count)]
    check_house(opened_with(opened, RoutedWeights(config, 3, router)))


def check_house(backend: CudaBackend) -> None:
    asked = jobs(backend.config.vocab)[: backend.rows]
    alone = [follow(backend.launch(job)) for job in asked]

    launches = [backend.launch(job) for job in asked]

    assert [follow(launch) for launch in launches] == alone


@pytest.mark.parametrize("devices", [1, 2])
def test_who_joins_and_who_is_stopped_leaves_a_long_stream_as_it_is_alone(opened: Open, devices: int) -> None:
    backend = opened_with_rows(opened, "test-llama", devices)
    asked = jobs(backend.config.vocab)
    long = replace(asked[2], max_tokens=800)
    alone = follow(backend.launch(long))

    staying = backend.launch(long)
    for job in asked[3:6]:
        backend.launch(job).close()
        assert follow(backend.launch(replace(job, max_tokens=5)))

    assert follow(staying) == alone


def test_who_goes_on_from_what_several_gpus_have_kept_does_so_beside_others(opened: Open) -> None:
    backend = opened_with_rows(opened, "test-llama", 2)
    first, company = (replace(jobs(backend.config.vocab)[i], max_tokens=n) for i, n in ((3, 20), (2, 800)))

    def go_on(owner: str, beside: list[Job]) -> tuple[list[int], int]:
        """What follows on a conversation, and how much of that was kept."""
        said = follow(backend.launch(replace(first, cache_salt=owner)))
        others = [backend.launch(job) for job in beside]
        again = backend.launch(replace(first, tokens=(*first.tokens, *said, 1, 2), cache_salt=owner))
        found = follow(again)
        for other in others:
            other.close()
        assert again.outcome is not None
        return found, again.outcome.cached_tokens

    alone = go_on("anna", [])

    assert alone[1] >= len(first.tokens)
    assert go_on("bert", [company, company]) == alone


def test_a_gpu_that_stands_still_ends_all_rows_and_the_next_ones_run(opened: Open) -> None:
    backend = opened_with_rows(opened, "test-llama", 2)
    shares = share_table(backend.layout.plan)
    forgetful = shares.copy()
    forgetful[np.flatnonzero(shares[:, Matrix.ATTN_OUT, 1])[0]] = 0  # an SM that has rows forgets them
    second = backend.device_contexts[1]
    asked = [replace(job, max_tokens=800) for job in jobs(backend.config.vocab)[:3]]
    alone = [follow(backend.launch(job)) for job in asked]

    launches = [backend.launch(job) for job in asked[:2]]
    assert all(launch.poll(5.0) for launch in launches)
    for context in backend.device_contexts:
        context.spin_budget_s = 0.2
    second.device.activate()
    second.device.upload(second.memory.shares, forgetful)
    launches.append(backend.launch(asked[2]))
    for launch in launches:
        with pytest.raises(BackendFailure, match=r"GPU \d, SM \d+, warp \d waited over"):
            follow(launch)

    second.device.activate()
    second.device.upload(second.memory.shares, shares)
    for context in backend.device_contexts:
        context.spin_budget_s = 1.5
    launches = [backend.launch(job) for job in asked]
    assert [follow(launch) for launch in launches] == alone

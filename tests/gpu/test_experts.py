"""Mixtures of experts: equal scores, one expert for all, and layers of a full-size model against FP32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.backends.base import Job  # noqa: E402
from engine.backends.cuda.backend import CudaBackend  # noqa: E402
from engine.models.config import Experts  # noqa: E402
from engine.models.presets import load_preset  # noqa: E402
from engine.models.storage import Storage  # noqa: E402
from engine.models.weights import RandomWeights, Weights  # noqa: E402
from engine.timings import EXPERT_PHASES  # noqa: E402
from tests.engine.models.packed_weights import RandomPacked  # noqa: E402
from tests.gpu.machine import require_gpus  # noqa: E402
from tests.gpu.models import CONFIGS, Model, RoutedWeights, StoredWeights  # noqa: E402
from tests.gpu.reference import TorchReference  # noqa: E402
from tests.gpu.scored import last_logits  # noqa: E402
from tests.gpu.test_full_size import relative_error, sequence  # noqa: E402
from tests.gpu.test_packed import check_logits  # noqa: E402
from tests.gpu.test_small_models import generated, reference_logits  # noqa: E402

Open = Callable[..., CudaBackend]
TOLERANCE = 2e-3
PREFILL_TOLERANCE = 2e-2
"""Of BF16 operands: prefill rounds weights and activations once to them."""
FULL_TOLERANCE = 1e-3
CLEAR = 1e-3
"""Scores nearer to each other than this may change places where numbers are rounded otherwise."""
TINY = CONFIGS["test-experts"]
PACKED = [
    ("test-experts", Storage.FP8_BLOCK),
    ("test-gpt-oss", Storage.MXFP4),
    ("test-experts", Storage.Q8_0),
]
ROUTES = {
    "all scores equal": [0.0] * 16,
    "every token meets the last four": [0.0] * 12 + [9.0] * 4,
    "more share the top than are met": [1.0, 5.0] * 8,
}


@pytest.mark.parametrize("route", ROUTES)
def test_forced_routes_give_the_reference_logits_and_the_same_bits_again(opened: Open, route: str) -> None:
    model = Model(TINY, RoutedWeights(TINY, 3, ROUTES[route]))
    backend = opened(model)
    tokens = sequence(backend, 40)
    found = backend.logits(tokens)
    assert relative_error(found, reference_logits(model, tokens)) < TOLERANCE
    assert all(np.array_equal(backend.logits(tokens), found) for _ in range(5))


@pytest.mark.parametrize("tiles_from", [1, 1000], ids=["by tiles", "by shares"])
@pytest.mark.parametrize("route", ROUTES)
def test_prompts_of_forced_routes_give_the_reference_logits(
    opened: Open, route: str, tiles_from: int
) -> None:
    """Some experts have several tiles of tokens then, and others none."""
    model = Model(TINY, RoutedWeights(TINY, 3, ROUTES[route]))
    backend = opened(model, tiles_from=tiles_from)
    tokens = sequence(backend, 300)
    found = last_logits(backend, tokens)
    assert relative_error(found, reference_logits(model, tokens)[-1]) < TOLERANCE
    assert all(np.array_equal(last_logits(backend, tokens), found) for _ in range(3))


def test_query_heads_of_one_kv_head_on_several_sms_give_the_same_logits(opened: Open) -> None:
    config = replace(TINY, name="experts-with-one-kv-head", kv_heads=1)
    model = Model(config, RandomWeights(config, 3))
    backend = opened(model, blocks_a_split=1)
    tokens = sequence(backend, 100)
    assert backend.layout.cut.groups == 4
    assert relative_error(backend.logits(tokens), reference_logits(model, tokens)) < TOLERANCE


def test_all_experts_met_is_one_wide_mlp(opened: Open) -> None:
    config = replace(TINY, name="all-experts-met", experts=Experts(count=4, chosen=4))
    model = Model(config, RandomWeights(config, 3))
    tokens = sequence(opened(model), 40)
    backend = opened(model)
    assert relative_error(backend.logits(tokens), reference_logits(model, tokens)) < TOLERANCE


def test_stored_experts_are_packed_like_random_ones(opened: Open) -> None:
    made = opened(Model(TINY, RandomWeights(TINY, 9)))
    tokens = sequence(made, 10)
    packed = opened(Model(TINY, StoredWeights(TINY, 9)))
    assert np.array_equal(made.logits(tokens), packed.logits(tokens))


@pytest.mark.parametrize("name", ["test-experts", "test-gpt-oss"])
def test_experts_cut_over_two_gpus_give_the_reference_logits(name: str) -> None:
    config = replace(CONFIGS[name], name=f"{name}-on-two", ffn=128)
    model = Model(config, RandomWeights(config, 3))
    backend = CudaBackend(model, {"virtual": True}, devices=2)
    try:
        tokens = sequence(backend, 40)
        found = backend.logits(tokens)
        assert relative_error(found, reference_logits(model, tokens)) < TOLERANCE
        assert np.array_equal(backend.logits(tokens), found)
        after_prefill = last_logits(backend, tokens)
        assert relative_error(after_prefill, reference_logits(model, tokens)[-1]) < TOLERANCE
        assert np.array_equal(last_logits(backend, tokens), after_prefill)
    finally:
        backend.close()


@pytest.mark.parametrize("stored", [False, True], ids=["random", "stored"])
@pytest.mark.parametrize("storage", [None, Storage.MXFP4], ids=["16 bits", "MXFP4"])
@pytest.mark.parametrize(
    ("devices", "virtual"),
    [(2, True), (4, True), (8, True), (2, False), (4, False), (8, False)],
    ids=["2v", "4v", "8v", "2", "4", "8"],
)
def test_experts_whose_columns_are_padded_give_the_logits_of_one_gpu(
    opened: Open, devices: int, virtual: bool, storage: Storage | None, stored: bool
) -> None:
    """As those of GPT-OSS are on several GPUs: 26 chunks, which are whole runs on one."""
    if not virtual:
        require_gpus(devices)
    config = replace(CONFIGS["test-gpt-oss"], name="padded columns", heads=8, kv_heads=8, ffn=832)
    weights: Weights = RandomWeights(config, 5, expert_storage=storage)
    if stored:
        choose = {True: storage or Storage.F16, False: Storage.F16}
        weights = RandomPacked(config, lambda name: choose[".experts." in name], 5)
    one = opened(Model(config, weights))
    several = opened(Model(config, weights), virtual=virtual, devices=devices)
    is_padded = several.layout.config.ffn * devices > config.ffn
    assert is_padded is (devices > 2 or storage is not None)
    assert several.storage("layers.0.experts.0.w_down") is one.storage("layers.0.experts.0.w_down")
    tokens = sequence(one, 80)
    assert relative_error(several.logits(tokens), one.logits(tokens)) < TOLERANCE
    after_prefill = last_logits(several, tokens)
    assert relative_error(after_prefill, last_logits(one, tokens)) < PREFILL_TOLERANCE
    assert np.array_equal(last_logits(several, tokens), after_prefill)


@pytest.mark.parametrize("tiles_from", [1, 1000], ids=["by tiles", "by shares"])
@pytest.mark.parametrize("length", [2, 17, 66, 140, 300])
@pytest.mark.parametrize("name", ["test-experts", "test-gpt-oss"])
def test_a_prompt_grouped_by_expert_gives_the_reference_logits(
    opened: Open, name: str, length: int, tiles_from: int
) -> None:
    model = Model(CONFIGS[name], RandomWeights(CONFIGS[name], 3))
    backend = opened(model, tiles_from=tiles_from)
    tokens = sequence(backend, length)
    found = last_logits(backend, tokens)
    assert relative_error(found, reference_logits(model, tokens)[-1]) < TOLERANCE
    assert all(np.array_equal(last_logits(backend, tokens), found) for _ in range(3))


@pytest.mark.parametrize("length", [17, 140])
@pytest.mark.parametrize(("name", "storage"), PACKED)
def test_packed_experts_give_the_reference_logits_and_the_same_bits_again(
    opened: Open, name: str, storage: Storage, length: int
) -> None:
    config = replace(CONFIGS[name], name=f"{name} in {storage.name}", ffn=128)
    weights = RandomPacked(config, lambda name: storage if ".experts." in name else Storage.F16, 3)
    backend = opened(Model(config, weights))
    assert backend.storage("layers.0.experts.0.w_down") is storage
    check_logits(backend, weights, length)
    tokens = sequence(backend, length)
    for first in (0, length - 1):
        found = backend.logits(tokens, first)
        assert all(np.array_equal(backend.logits(tokens, first), found) for _ in range(3))


@pytest.mark.parametrize(("name", "storage"), PACKED)
def test_random_packed_experts_are_made_on_the_gpu_as_numpy_makes_them(
    opened: Open, name: str, storage: Storage
) -> None:
    config = replace(CONFIGS[name], name=f"random {name} in {storage.name}", ffn=256)
    weights = RandomWeights(config, 7, storage=storage)
    check_logits(opened(Model(config, weights)), weights, 40)


@pytest.mark.parametrize(("name", "storage"), PACKED)
def test_two_gpus_hold_their_columns_of_packed_experts(opened: Open, name: str, storage: Storage) -> None:
    """Of seeds whose scores all lie apart, or prompts rounded otherwise would meet other experts."""
    seed = 5 if storage is Storage.MXFP4 else 6
    config = replace(CONFIGS[name], name=f"{name} in {storage.name} on two", ffn=256)
    weights = RandomPacked(config, lambda name: storage if ".experts." in name else Storage.F16, seed)
    one, two = opened(Model(config, weights)), opened(Model(config, weights), virtual=True, devices=2)
    assert two.storage("layers.0.experts.0.w_down") is storage
    tokens = sequence(one, 80)
    assert relative_error(two.logits(tokens), one.logits(tokens)) < TOLERANCE
    after_prefill = last_logits(two, tokens)
    assert relative_error(after_prefill, last_logits(one, tokens)) < PREFILL_TOLERANCE
    assert np.array_equal(last_logits(two, tokens), after_prefill)


def test_a_prompt_goes_through_and_the_profile_names_router_and_experts(opened: Open) -> None:
    backend = opened(Model(TINY, RandomWeights(TINY, 6)))
    prompt = tuple(sequence(backend, 60))
    launch = backend.launch(Job(prompt, 20, profile=True))
    outcome = launch.wait()
    tokens = [token.id for token in launch.poll(0)]
    launch.close()
    assert tuple(outcome.phases_us) == EXPERT_PHASES
    assert outcome.phases_us["router"].wait_local > 0 and outcome.phases_us["experts"].work > 0
    assert tokens == generated(backend, Job(prompt, 20))


@pytest.fixture(scope="module", params=["qwen3-30b-a3b", "gpt-oss-20b"])
def layers(request: pytest.FixtureRequest) -> Iterator[tuple[CudaBackend, TorchReference]]:
    """Some layers of the model at its full width, with all their experts."""
    whole = load_preset(request.param).config
    config = replace(whole, layers=3, windows=whole.windows[:3], name=f"{request.param}, 3 layers")
    backend = CudaBackend(Model(config, RandomWeights(config, 0)), {"context": 1024})
    yield backend, TorchReference(config, 0)
    backend.close()
    torch.cuda.empty_cache()


def test_layers_at_full_width_give_the_logits_of_fp32(layers: tuple[CudaBackend, TorchReference]) -> None:
    backend, reference = layers
    tokens = sequence(backend, 200)
    wanted = reference.logits(tokens, len(tokens)).cpu().numpy()
    clear = (torch.stack(reference.margins) > CLEAR).all(dim=0).cpu().numpy()
    found = backend.logits(tokens)
    error = relative_error(found[clear], wanted[clear])
    of_all = relative_error(found, wanted)
    print(f"{backend.config.name}: {error:.2e} over {clear.sum()} clear tokens, {of_all:.2e} over all")
    assert clear.sum() > 150
    assert error < FULL_TOLERANCE
    assert np.array_equal(backend.logits(tokens), found)
    after_prefill = last_logits(backend, tokens)
    error = relative_error(after_prefill, wanted[-1])
    print(f"{backend.config.name}: {error:.2e} after a prompt by tiles")
    assert error < PREFILL_TOLERANCE
    assert np.array_equal(last_logits(backend, tokens), after_prefill)

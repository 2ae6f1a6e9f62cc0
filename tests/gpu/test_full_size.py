"""The shapes that figures are published for, against an FP32 computation with the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from engine.backends.base import Job  # noqa: E402
from engine.backends.cuda.backend import CudaBackend  # noqa: E402
from engine.kv_cache import KeysAndValues  # noqa: E402
from engine.models.presets import load_preset  # noqa: E402
from engine.models.weights import RandomWeights  # noqa: E402
from tests.gpu.cache import require_close  # noqa: E402
from tests.gpu.models import Model  # noqa: E402
from tests.gpu.reference import TorchReference  # noqa: E402
from tests.gpu.scored import last_logits  # noqa: E402
from tests.gpu.test_prefill import LIMITS, left_in_cache, prefill  # noqa: E402

TOLERANCE = 1e-3
Pair = tuple[CudaBackend, TorchReference]


@pytest.fixture(scope="module", params=["laneformer-2b", "llama-3.2-1b", "qwen2.5-coder-1.5b", "qwen3-8b"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    config = load_preset(request.param).config
    backend = CudaBackend(Model(config, RandomWeights(config, 0)), {"context": 4096})
    yield backend, TorchReference(config, 0)
    backend.close()
    torch.cuda.empty_cache()


def sequence(backend: CudaBackend, length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, backend.config.vocab, length).tolist()


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    assert np.isfinite(found).all()
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("length", [1, 63, 64, 65, 300, 4095])
def test_logits_after_a_prompt_are_those_of_the_whole_sequence(pair: Pair, length: int) -> None:
    backend, reference = pair
    tokens = sequence(backend, length)
    error = relative_error(last_logits(backend, tokens), reference.logits(tokens)[0].cpu().numpy())
    print(f"{backend.config.name}, {length} tokens: {error:.2e}")
    assert error < TOLERANCE


@pytest.mark.parametrize("length", [300, 2048])
def test_keys_and_values_after_prefill_are_those_of_fp32(pair: Pair, length: int) -> None:
    backend, reference = pair
    tokens = sequence(backend, length)
    reference.logits(tokens)
    rows = [torch.stack(kept).cpu().numpy() for kept in zip(*reference.cache, strict=True)]
    prefill(backend, tokens, 0, length)
    limit = LIMITS[backend.layout.weights]
    require_close(
        left_in_cache(backend, length), KeysAndValues(*rows), limit, f"{backend.config.name}, {length} tokens"
    )


def test_decode_gives_the_same_logits_token_by_token(pair: Pair) -> None:
    backend, reference = pair
    tokens = sequence(backend, 80)
    error = relative_error(backend.logits(tokens), reference.logits(tokens, 80).cpu().numpy())
    print(f"{backend.config.name}, decode: {error:.2e}")
    assert error < TOLERANCE


def test_greedy_tokens_are_the_references_for_64_steps(pair: Pair) -> None:
    backend, reference = pair
    prompt = sequence(backend, 33)
    launch = backend.launch(Job(tuple(prompt), 64))
    launch.wait()
    found = [token.id for token in launch.poll(0)]
    launch.close()
    rows = reference.logits(prompt + found[:-1], 64).cpu().numpy()
    behind = rows.max(axis=1) - rows[np.arange(64), found]
    assert len(found) == 64
    assert (behind <= 2e-3 * np.abs(rows).max(axis=1)).all()


def test_repeated_launches_give_the_same_bits(pair: Pair) -> None:
    backend, _ = pair
    tokens = sequence(backend, 130)
    first = last_logits(backend, tokens)
    assert all(np.array_equal(last_logits(backend, tokens), first) for _ in range(4))

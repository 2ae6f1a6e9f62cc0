"""Packed weights stay packed on the CPU, and give what the reference gives with the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.cpu.build import Target
from engine.backends.running import complete
from engine.measuring.bench import run_point
from engine.measuring.point import Point
from engine.measuring.roofline import bytes_per_token
from engine.measuring.verification import kept_weights
from engine.models.catalogue import open_model
from engine.models.config import ModelConfig, matrix_shapes
from engine.models.storage import Storage, matrix_bytes
from engine.models.weights import RandomWeights, Weights
from tests.engine.backends.cpu.builds import BUILDS
from tests.engine.models.checkpoints.files import write_gguf
from tests.engine.models.packed_weights import RandomPacked, all_in

TINY = ModelConfig(
    "tiny", hidden=256, layers=2, heads=8, kv_heads=2, head_dim=32, ffn=512, vocab=250, context=96
)
PACKED = [storage for storage in Storage if storage.is_packed]
TOLERANCE = 2e-3
"""Of logits, by L2 norm. The cache in FP16 takes nearly all of it; weights of larger spread take more."""
PROMPT = tuple(range(3, 40))


@dataclass(frozen=True)
class Random:
    config: ModelConfig
    weights: Weights


@contextmanager
def opened(name: str, model: Random, devices: int = 1, **options: object) -> Iterator[Backend]:
    backend = open_backend(name, model, devices=devices, options=options)
    try:
        yield backend
    finally:
        backend.close()


def mixed(name: str) -> Storage:
    """As files called Q4_K_M are: of every matrix another storage, and changes from layer to layer."""
    kind = name.rsplit(".", 1)[-1]
    first = name.startswith("layers.0")
    return {
        "wq": Storage.Q5_0,
        "wk": Storage.F16,
        "wv": Storage.Q8_0 if first else Storage.Q6_K,
        "wo": Storage.Q4_K,
        "w_gate": Storage.MXFP4,
        "w_up": Storage.FP8_BLOCK,
        "w_down": Storage.Q6_K if first else Storage.Q4_K,
        "embed": Storage.Q8_0,
    }.get(kind, Storage.Q6_K)


def assert_agrees(model: Random, devices: int = 1, **options: object) -> None:
    with opened("numpy", model) as reference, opened("cpu", model, devices, **options) as cpu:
        expected = reference.logits(PROMPT)
        error = np.linalg.norm(cpu.logits(PROMPT) - expected) / np.linalg.norm(expected)
        assert error < TOLERANCE
        job = Job(PROMPT, 32)
        assert [t.id for t in complete(cpu, job)] == [t.id for t in complete(reference, job)]


@pytest.mark.parametrize("storage", PACKED, ids=lambda storage: storage.name)
def test_each_format_gives_the_references_logits_and_tokens(storage: Storage) -> None:
    config = replace(TINY, tied_head=storage in (Storage.Q8_0, Storage.MXFP4, Storage.FP8_BLOCK))
    assert_agrees(Random(config, RandomPacked(config, all_in(storage), 3)), threads=2)


@pytest.mark.slow
@pytest.mark.parametrize("target", BUILDS, ids=lambda target: target.name)
def test_formats_may_differ_from_matrix_to_matrix(target: Target) -> None:
    assert_agrees(Random(TINY, RandomPacked(TINY, mixed, 4)), threads=3, isa=target.name)


@pytest.mark.parametrize("change", [{"hidden": 288, "ffn": 160}, {"head_dim": 20, "heads": 16}], ids=str)
def test_rows_of_odd_lengths_and_panels_of_two_matrices_agree(change: dict[str, int]) -> None:
    config = replace(TINY, **change)  # type: ignore[arg-type]
    assert_agrees(Random(config, RandomPacked(config, all_in(Storage.Q8_0), 5)), threads=2)


def test_matrices_are_cut_over_devices_where_blocks_allow_it() -> None:
    config = replace(TINY, ffn=256)
    model = Random(config, RandomPacked(config, all_in(Storage.Q4_K), 6))
    assert_agrees(model, devices=2, threads=1)
    with opened("cpu", model, 2, threads=1) as cpu:
        assert cpu.storage("layers.0.w_gate") is Storage.Q4_K
        assert cpu.storage("layers.0.w_down") is Storage.F16  # 128 columns a device are half a block


def test_a_panel_with_rows_of_two_formats_is_kept_in_sixteen_bits() -> None:
    config = replace(TINY, head_dim=20, heads=16, kv_heads=1)

    def by_matrix(name: str) -> Storage:
        return Storage.Q5_0 if name.endswith("wk") else Storage.Q8_0

    model = Random(config, RandomPacked(config, by_matrix, 7))
    with opened("cpu", model, threads=1) as cpu:
        assert [cpu.storage(f"layers.1.{name}") for name in ("wq", "wk", "wv")] == [Storage.F16] * 3
        assert cpu.storage("layers.1.wo") is Storage.Q8_0


@pytest.mark.parametrize("storage", PACKED, ids=lambda storage: storage.name)
def test_a_token_reads_the_bytes_of_the_file(storage: Storage) -> None:
    weights = RandomPacked(replace(TINY, tied_head=True), all_in(storage))
    with opened("cpu", Random(weights.config, weights), threads=1) as cpu:
        read = bytes_per_token(weights.config, 0, cpu.storage).weights
    matrices = sum(weights.packed(name).nbytes for name in matrix_shapes(weights.config))
    norms = 2 * TINY.hidden * (2 * TINY.layers + 1)
    row = matrix_bytes(storage, TINY.vocab + 1, TINY.hidden) - matrix_bytes(storage, TINY.vocab, TINY.hidden)
    assert read == matrices + norms + row


def held_kb(opening: Callable[[], Backend]) -> int:
    """What opening a backend adds to this process's own memory."""

    def now() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    before = now()
    backend = opening()
    try:
        return now() - before
    finally:
        backend.close()


def test_memory_holds_the_packed_bytes_alone() -> None:
    config = replace(TINY, hidden=2048, ffn=4096, layers=1, windows=(), vocab=32, tied_head=True)
    weights = RandomPacked(config, all_in(Storage.Q4_K))
    shipped = sum(weights.packed(name).nbytes for name in matrix_shapes(config))
    kept = held_kb(lambda: open_backend("cpu", Random(config, weights), options={"threads": 1}))
    assert kept << 10 < shipped + (10 << 20)  # sixteen bits would be 3.6 times as much
    assert shipped > 14_000_000


@pytest.mark.slow
def test_a_file_in_q8_0_is_measured_and_verified_as_it_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(TINY, ffn=512, vocab=300, context=256)
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(config, 2), kind=gguf.GGMLQuantizationType.Q8_0)
    model = open_model(str(path))
    backend = open_backend("cpu", model, options={"threads": 1})
    # So small a model lies in the cache: beside a busy memory it is faster than memory allows, and refused.
    monkeypatch.setattr(backend, "measure_bandwidth", lambda: (1000.0,))
    monkeypatch.setattr("engine.measuring.bench.WARM_UP_S", 0.0)
    measured = run_point(backend, model, Point(32, 16, 1))
    backend.close()
    assert measured.verified.passed
    assert measured.verified.logit_rel_err is not None
    assert measured.verified.logit_rel_err < TOLERANCE
    assert measured.model.bytes_per_token.weights < 0.54 * 2 * config.parameters


def test_what_is_verified_against_is_what_is_kept() -> None:
    weights = RandomPacked(TINY, mixed)
    model = Random(TINY, weights)
    with opened("cpu", model, threads=1) as cpu:
        kept = kept_weights(cpu, weights)
        for name in ("layers.0.wq", "layers.0.wk", "embed", "norm"):
            np.testing.assert_array_equal(kept.get(name), weights.get(name))

"""Panels of weights against the decoders of files, and their products against FP64."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from engine.backends.cpu.build import SOURCES, Target, compiler, runnable, write_contract
from engine.models.storage import Storage
from tests.engine.models.packed_weights import random_packed, unpack

ROWS = 16
FP32_LIMIT = 1e-6
"""Of a product, as a share of |w| |x|: sums in FP32."""
LIMIT = FP32_LIMIT + 32**0.5 / 65024
"""With each activation off by at most 1/65,024 of the largest of 32: the bound of Cauchy and Schwarz."""
HERE = Path(__file__).parent
PACKED = [storage for storage in Storage if storage.is_packed]


def widths() -> tuple[Target, ...]:
    """The best build that this processor runs, and that for sixteen registers, which has its own loops."""
    best, *others = runnable()
    return (best, *(target for target in others if target.name == "avx2"))


@pytest.fixture(scope="module", params=widths(), ids=lambda target: target.name)
def products(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = compiler()
    assert program is not None, "the kernels need a C++ compiler: install g++"
    folder = tmp_path_factory.mktemp("products")
    target: Target = request.param
    machine = [f"-march={target.march}", *target.extensions]
    flags = ["-std=c++17", "-O1", "-Wno-psabi", "-w", *machine, f"-I{SOURCES}", f"-I{write_contract(folder)}"]
    binary = folder / "products"
    files = [str(HERE / "products.cpp"), str(SOURCES / "products_block.cpp")]
    subprocess.run([program, *flags, *files, "-o", str(binary)], check=True, timeout=300)
    return binary


def columns_of(storage: Storage, blocks: int) -> int:
    """Whole blocks; of FP8, which needs none, an odd number too."""
    return 31 * blocks + 9 if storage is Storage.FP8_BLOCK else blocks * storage.run


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    storage=st.sampled_from(PACKED),
    blocks=st.integers(1, 19),
    tokens=st.integers(1, 40),
    outlier=st.sampled_from([1.0, 100.0]),
    seed=st.integers(0, 2**32),
)
def test_rows_come_back_bit_for_bit_and_products_are_exact_to_the_rounding_of_activations(
    products: Path, storage: Storage, blocks: int, tokens: int, outlier: float, seed: int
) -> None:
    columns = columns_of(storage, blocks)
    packed = random_packed(storage, ROWS, columns, 0.05, seed)
    x = np.random.default_rng(seed).standard_normal((columns, tokens)).astype(np.float32)
    x[seed % columns] *= outlier
    scales = np.zeros((ROWS, -(-columns // 128)), np.float32)
    if packed.scales is not None:
        scales[:] = packed.scales

    back, single, together, block = run(products, storage, packed.rows, scales, x)

    numbers = unpack(packed)
    np.testing.assert_array_equal(back, numbers)
    np.testing.assert_array_equal(together, single, err_msg="a request's product depends on the others")
    expected = (numbers.astype(np.float64) @ x).T
    size = np.linalg.norm(x.astype(np.float64), axis=0)[:, None] * np.linalg.norm(numbers, axis=1)
    limit = FP32_LIMIT if storage is Storage.FP8_BLOCK else LIMIT
    assert (np.abs(single - expected) / size).max() < limit
    assert (np.abs(block - expected) / size).max() < limit


@pytest.mark.parametrize("columns", [1, 8, 31, 40, 64, 203, 576])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 7, 8])
def test_products_of_sixteen_bits_do_not_depend_on_how_many_requests_there_are(
    products: Path, columns: int, tokens: int
) -> None:
    random = np.random.default_rng(columns * tokens)
    numbers = random.standard_normal((ROWS, columns)).astype(np.float16)
    x = random.standard_normal((columns, tokens)).astype(np.float32)
    scales = np.zeros((ROWS, -(-columns // 128)), np.float32)

    back, single, together, block = run(products, Storage.F16, numbers.view(np.uint8), scales, x)

    np.testing.assert_array_equal(back, numbers.astype(np.float32))
    np.testing.assert_array_equal(together, single)
    expected = (numbers.astype(np.float64) @ x).T
    size = np.linalg.norm(x.astype(np.float64), axis=0)[:, None] * np.linalg.norm(
        numbers.astype(np.float64), axis=1
    )
    for found in (single, block):
        assert (np.abs(found - expected) / size).max() < FP32_LIMIT


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("storage", PACKED, ids=lambda storage: storage.name)
def test_an_activation_that_is_no_number_is_not_hidden(products: Path, storage: Storage, bad: float) -> None:
    packed = random_packed(storage, ROWS, 256, 0.05, 1)
    scales = np.ones((ROWS, 2), np.float32)
    x = np.ones((256, 20), np.float32)
    x[40, 1] = bad
    _, single, _, block = run(products, storage, packed.rows, scales, x)
    for found in (single, block):
        assert np.isfinite(found[0]).all()
        assert not np.isfinite(found[1]).any()


Floats = NDArray[np.float32]


def run(
    program: Path, storage: Storage, rows: NDArray[np.uint8], scales: Floats, x: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Rows read back [16, columns]; products of single tokens, of requests, of a block [tokens, 16]."""
    columns, tokens = x.shape
    done = subprocess.run(
        [program, str(int(storage)), str(columns), str(tokens)],
        input=rows.tobytes() + scales.tobytes() + np.ascontiguousarray(x).tobytes(),
        capture_output=True,
        check=True,
        timeout=60,
    )
    found = np.frombuffer(done.stdout, np.float32)
    back, products = np.split(found, [ROWS * columns])
    single, together, block = products.reshape(3, tokens, ROWS)
    return back.reshape(ROWS, columns), single, together, block

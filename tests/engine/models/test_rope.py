import numpy as np
import pytest

from engine.models.rope import Llama3Scaling, Rope, RopeLayout, inverse_frequencies, rotate, rotation_table

LLAMA31 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192)


@pytest.mark.parametrize("layout", list(RopeLayout))
def test_rotation_multiplies_each_pair_as_a_complex_number(layout: RopeLayout) -> None:
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    pairs = _as_complex(x, layout)
    cos, sin = rotation_table(Rope(), 8, 5)

    rotate(x, cos, sin, layout)

    angles = np.arange(5)[:, None] * 10000.0 ** (-np.arange(0, 8, 2) / 8)
    assert np.allclose(_as_complex(x, layout), pairs * np.exp(1j * angles), atol=1e-6)


def test_scores_depend_on_the_distance_alone() -> None:
    rng = np.random.default_rng(1)
    q, k = (rng.normal(size=16).astype(np.float32) for _ in range(2))
    cos, sin = rotation_table(Rope(), 16, 64)

    def score(i: int, j: int) -> float:
        a, b = q.copy(), k.copy()
        rotate(a, cos[i], sin[i], RopeLayout.HALF)
        rotate(b, cos[j], sin[j], RopeLayout.HALF)
        return float(a @ b)

    assert score(10, 3) == pytest.approx(score(57, 50), abs=1e-4)


def test_llama_31_scaling_keeps_short_wavelengths_and_stretches_long_ones() -> None:
    plain = inverse_frequencies(Rope(theta=500000.0), 64)
    scaled = inverse_frequencies(Rope(theta=500000.0, scaling=LLAMA31), 64)

    wavelength = 2 * np.pi / plain
    short, long = wavelength < 8192 / 4, wavelength > 8192
    assert np.array_equal(scaled[short], plain[short])
    assert np.allclose(scaled[long], plain[long] / 8)
    between = ~short & ~long
    assert between.any()
    assert np.all((scaled[between] < plain[between]) & (scaled[between] > plain[between] / 8))


def _as_complex(x: np.ndarray, layout: RopeLayout) -> np.ndarray:
    if layout is RopeLayout.HALF:
        return x[..., : x.shape[-1] // 2] + 1j * x[..., x.shape[-1] // 2 :]
    return x[..., 0::2] + 1j * x[..., 1::2]

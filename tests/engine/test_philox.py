import numpy as np
import pytest

from engine.philox import philox4x32, uniforms


# The vectors that Random123 publishes for philox4x32 with 10 rounds (its file kat_vectors).
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers_of_random123(counter: str, key: str, expected: str) -> None:
    words = philox4x32(np.array([_words(counter)], np.uint32), (_words(key)[0], _words(key)[1]))

    assert words[0].tolist() == _words(expected)


def test_each_counter_of_a_batch_gives_what_it_gives_alone() -> None:
    counters = np.arange(40, dtype=np.uint32).reshape(10, 4)

    together = philox4x32(counters, (7, 9))

    alone = [philox4x32(counters[i : i + 1], (7, 9))[0] for i in range(10)]
    assert np.array_equal(together, alone)


def test_uniforms_follow_the_documented_counter_and_key() -> None:
    seed, position, token = 0x0123456789ABCDEF, 77, 1234

    (value,) = uniforms(seed, position, np.array([token]))

    word = philox4x32(np.array([[token >> 2, position, 0, 0]], np.uint32), (0x89ABCDEF, 0x01234567))[0][
        token & 3
    ]
    assert float(value) == ((int(word) >> 9) + 0.5) * 2.0**-23


def test_a_subset_of_ids_draws_the_same_numbers_as_the_whole_vocabulary() -> None:
    ids = np.array([0, 3, 4, 17, 18, 996])

    assert np.array_equal(uniforms(5, 2, ids), uniforms(5, 2, np.arange(1000))[ids])


def test_uniforms_are_uniform_and_never_reach_the_ends() -> None:
    values = uniforms(1, 1, np.arange(1 << 18))

    counts, _ = np.histogram(values, bins=64, range=(0, 1))
    expected = len(values) / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 120  # 63 degrees of freedom: the 1 - 2e-5 quantile
    assert values.min() > 0
    assert values.max() < 1


def _words(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]

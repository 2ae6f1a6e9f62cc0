"""Decoded weights on disk: the same numbers, decoded once, and never from a file that is not theirs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.models.checkpoints.decoded import SUFFIX, keep_decoded, kept_files
from engine.models.config import tensor_shapes
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.models.weights import DType, RandomWeights

CONFIG = load_preset("tiny-llama").config
NAMES = [name for name, _ in tensor_shapes(CONFIG)]
LARGE = 1 << 40


class Packed(RandomWeights):
    """Counts what has to be decoded."""

    def __init__(self, seed: int = 0, *, is_decoded: bool = True) -> None:
        super().__init__(CONFIG, seed)
        self.is_decoded = is_decoded
        self.decoded: list[str] = []

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        self.decoded.append(name)
        return super().get(name, dtype)


def read_all(packed: Packed, folder: Path, digest: str = "d" * 64, budget: int = LARGE) -> list[NDArray[Any]]:
    weights = keep_decoded(packed, digest, folder, budget)
    return [weights.get(name, "f16") for name in NAMES]


def test_a_second_start_decodes_no_matrix_and_sees_the_same_numbers(tmp_path: Path) -> None:
    first = read_all(Packed(), tmp_path)
    again = Packed()
    for expected, found in zip(first, read_all(again, tmp_path), strict=True):
        np.testing.assert_array_equal(expected, found)
    assert {name.rsplit(".", 1)[-1] for name in again.decoded} == {"attn_norm", "ffn_norm", "norm"}


class WithPackedEmbedding(Packed):
    """Its embedding is multiplied as it ships by whoever can."""

    def storage(self, name: str) -> Storage:
        return Storage.Q8_0 if name == "embed" else Storage.F16

    def packed(self, name: str) -> NoReturn:
        raise NotImplementedError


def test_what_a_backend_takes_as_it_ships_keeps_the_rest_from_no_file(tmp_path: Path) -> None:
    others = [name for name in NAMES if name != "embed" and not name.endswith("norm")]
    for expected in (len(others), 0):  # decoded at the first start, and mapped at the second
        source = WithPackedEmbedding()
        weights = keep_decoded(source, "d" * 64, tmp_path, LARGE)
        for name in others:
            weights.get(name, "f16")
        assert len(source.decoded) == expected
        del weights
    [path] = tmp_path.iterdir()
    assert "packed" not in path.name


def test_other_types_are_decoded_as_ever(tmp_path: Path) -> None:
    read_all(Packed(), tmp_path)
    weights = keep_decoded(Packed(), "d" * 64, tmp_path, LARGE)
    np.testing.assert_array_equal(weights.get("embed", "f32"), RandomWeights(CONFIG).get("embed", "f32"))


def test_a_file_that_is_cut_short_is_made_again(tmp_path: Path) -> None:
    first = read_all(Packed(), tmp_path)
    [path] = kept_files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    for expected, found in zip(first, read_all(Packed(), tmp_path), strict=True):
        np.testing.assert_array_equal(expected, found)
    assert path.read_bytes() == whole


def test_a_file_of_other_weights_is_not_taken_for_these(tmp_path: Path) -> None:
    read_all(Packed(1), tmp_path, "e" * 64)
    [path] = kept_files(tmp_path)
    path.rename(path.with_name(path.name.replace("e", "d", 32)))
    found = read_all(Packed(2), tmp_path)
    np.testing.assert_array_equal(found[0], RandomWeights(CONFIG, 2).get(NAMES[0], "f16"))


def test_weights_that_are_only_looked_at_leave_no_file(tmp_path: Path) -> None:
    weights = keep_decoded(Packed(), "d" * 64, tmp_path, LARGE)
    weights.get("embed", "f16")
    assert list(tmp_path.iterdir())
    del weights
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("is_decoded", "budget"), [(False, LARGE), (True, 1000), (True, 0)])
def test_nothing_is_kept_where_it_helps_nobody_or_has_no_room(
    tmp_path: Path, is_decoded: bool, budget: int
) -> None:
    read_all(Packed(is_decoded=is_decoded), tmp_path, budget=budget)
    assert not list(tmp_path.iterdir())


def test_the_least_recently_used_gives_way(tmp_path: Path) -> None:
    for number in range(3):
        read_all(Packed(number), tmp_path, f"{number}" * 64)
        size = kept_files(tmp_path)[0].stat().st_size
        for age, path in enumerate(reversed(kept_files(tmp_path))):
            os.utime(path, (1000 - age, 1000 - age))
    read_all(Packed(0), tmp_path, "0" * 64)
    read_all(Packed(3), tmp_path, "3" * 64, budget=2 * size)
    assert {path.name[0] for path in tmp_path.glob(f"*{SUFFIX}")} == {"0", "3"}

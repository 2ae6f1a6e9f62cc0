"""GGUF models in several files, as the gguf library splits them."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.models.catalogue import name_of, open_model
from engine.models.checkpoints.gguf_split import read_gguf_model
from engine.models.config import tensor_shapes
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights
from tests.engine.models.checkpoints.files import write_gguf

TINY = load_preset("tiny-llama").config
PARTS = 4


@pytest.fixture
def first(tmp_path: Path) -> Path:
    path = write_gguf(tmp_path / "big.gguf", RandomWeights(TINY, 5), tensors_a_part=12)
    assert path.name == f"big-00001-of-{PARTS:05d}.gguf"
    return path


def part(first: Path, number: int) -> Path:
    return first.with_name(f"big-{number:05d}-of-{PARTS:05d}.gguf")


@pytest.mark.parametrize("number", [1, 3])
def test_any_part_opens_the_model_that_one_file_holds(tmp_path: Path, first: Path, number: int) -> None:
    whole = open_model(str(write_gguf(tmp_path / "big.gguf", RandomWeights(TINY, 5))))

    split = open_model(str(part(first, number)))

    assert split.config == whole.config
    assert split.config.name == name_of(str(part(first, number))) == "big"
    for name, _ in tensor_shapes(TINY):
        np.testing.assert_array_equal(split.weights.get(name), whole.weights.get(name))


def test_the_digest_is_of_all_parts(first: Path) -> None:
    before = open_model(str(first)).digest
    last = bytearray(part(first, PARTS).read_bytes())
    last[-1] ^= 1
    part(first, PARTS).write_bytes(last)

    assert open_model(str(first)).digest != before


def test_a_part_that_is_missing_is_named(first: Path) -> None:
    part(first, 3).unlink()

    with pytest.raises(CheckpointError, match=r"the first of 4 files, and big-00003-of-00004\.gguf is not"):
        open_model(str(first))


def test_a_part_in_the_place_of_another_is_refused(first: Path) -> None:
    shutil.copy(part(first, 2), part(first, 3))

    with pytest.raises(CheckpointError, match=r"00003-of-00004\.gguf does not say that it is part 3 of 4"):
        read_gguf_model(first)


def test_a_tensor_that_two_parts_hold_is_refused(first: Path) -> None:
    number = b"split.no" + struct.pack("<I", gguf.GGUFValueType.UINT16)
    second, third = (number + struct.pack("<H", at) for at in (1, 2))
    part(first, 3).write_bytes(part(first, 2).read_bytes().replace(second, third))

    with pytest.raises(CheckpointError, match=r"big-00003-of-00004\.gguf repeats the tensor '"):
        read_gguf_model(first)

"""The safetensors reader: whole files are mapped, damaged ones give one clear error."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.models.checkpoints.safetensors_file import INDEX, read_folder, read_safetensors, weight_files
from tests.engine.models.checkpoints.files import safetensors_bytes

ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: object, body: bytes = b"\0" * 8) -> Path:
    path.write_bytes(safetensors_bytes(header, body))
    return path


def test_a_file_of_the_safetensors_library_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    values = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.linspace(0, 1, 5).astype(np.float16),
    }
    safetensors.numpy.save_file(values, path, metadata={"format": "pt"})

    tensors = read_safetensors(path)

    assert set(tensors) == {"a", "b"}
    for name, expected in values.items():
        np.testing.assert_array_equal(tensors[name].read("f32"), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"data_offsets": [0, 12]}, "cut short or corrupt"),
        ({"data_offsets": [8, 0]}, "cut short or corrupt"),
        ({"data_offsets": [8, 16]}, "cut short or corrupt"),
        ({"shape": [3]}, "cut short or corrupt"),
        ({"shape": [1 << 62, 1 << 62]}, "cut short or corrupt"),
        ({"shape": [-2]}, "malformed"),
        ({"shape": [2.0]}, "malformed"),
        ({"shape": [True, 2]}, "malformed"),
        ({"shape": [1] * 9}, "malformed"),
        ({"shape": 2}, "malformed"),
        ({"data_offsets": [0]}, "malformed"),
        ({"data_offsets": "08"}, "malformed"),
        ({"dtype": "I64"}, "of type 'I64'; supported are F32, F16, BF16, F8_E4M3"),
        ({"dtype": ["F32"]}, "supported are F32, F16, BF16, F8_E4M3"),
    ],
)
def test_a_wrong_entry_is_one_error(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    path = write(tmp_path / "model.safetensors", {"w": {**ENTRY, **change}})

    with pytest.raises(CheckpointError, match=problem):
        read_safetensors(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        b"\xff" * 8,
        b"\xff\xff\xff\xff\xff\xff\xff\x7f{}",
        safetensors_bytes(b"not json"),
        safetensors_bytes(b"[" * 200000),
        safetensors_bytes(b"[]"),
        safetensors_bytes(b'{"w": 3}'),
        safetensors_bytes(b'{"w": {}, "w": {}}'),
    ],
)
def test_a_file_that_is_not_safetensors_is_one_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        read_safetensors(path)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (b'{"w": [' + b"[]," * 500_000 + b"[]]}", "500003 lists and objects; allowed are 262144"),
        (b" " * (17 << 20), "17825792 bytes; allowed are 16777216"),
    ],
)
def test_a_header_takes_no_more_memory_than_a_real_one(tmp_path: Path, header: bytes, problem: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(header))
    tracemalloc.start()

    with pytest.raises(CheckpointError, match=problem):
        read_safetensors(path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 << 20


def test_an_index_whose_shard_is_no_text_is_a_short_error(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"w": ["x" * 100_000]}}))

    with pytest.raises(CheckpointError, match="a shard must lie in the same folder") as error:
        read_folder(tmp_path)

    assert len(str(error.value)) < 400


@given(data=st.data())
def test_damage_anywhere_never_ends_in_another_exception(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = safetensors.numpy.save({"a": np.ones(4, np.float32), "b": np.ones((2, 2), np.float16)})
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    damaged = (
        whole[:at] if cut else whole[:at] + data.draw(st.binary(min_size=1, max_size=4)) + whole[at + 1 :]
    )
    path = tmp_path_factory.mktemp("damage") / "model.safetensors"
    path.write_bytes(damaged)

    try:
        for tensor in read_safetensors(path).values():
            tensor.read("f32")
    except CheckpointError as error:
        assert "\n" not in str(error) or "JSON" in str(error)


def test_shards_are_found_through_the_index(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / "one.safetensors")
    safetensors.numpy.save_file({"b": np.zeros(2, np.float32)}, tmp_path / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))

    tensors = read_folder(tmp_path)

    assert tensors["a"].read("f32").tolist() == [1, 1]
    assert tensors["b"].read("f32").tolist() == [0, 0]
    assert [p.name for p in weight_files(tensors)] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize("shard", ["../one.safetensors", "/etc/passwd", "a/b.safetensors", "..", ""])
def test_a_shard_outside_the_folder_is_refused(tmp_path: Path, shard: str) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": shard}}))

    with pytest.raises(CheckpointError, match="a shard must lie in the same folder"):
        read_folder(tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))

    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read"):
        read_folder(tmp_path)


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path: Path) -> None:
    safetensors.numpy.save_file({"a": np.ones(2, np.float32)}, tmp_path / "one.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"b": "one.safetensors"}}))

    with pytest.raises(CheckpointError, match=r"one\.safetensors lacks tensor 'b'"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}'])
def test_an_index_that_is_none_is_one_error(tmp_path: Path, text: str) -> None:
    (tmp_path / INDEX).write_text(text)

    with pytest.raises(CheckpointError, match="is not a usable index"):
        read_folder(tmp_path)


def test_a_folder_without_safetensors_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"")

    with pytest.raises(CheckpointError, match="convert the checkpoint to safetensors first"):
        read_folder(tmp_path)

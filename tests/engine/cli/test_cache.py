"""`cache`: shown and cleared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.cli import app


def test_the_cache_is_shown_and_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    (tmp_path / "weights").mkdir()
    kept = tmp_path / "weights" / "a.weights"
    kept.write_bytes(bytes(2_000_000))
    assert app.main(["cache", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0] == {"kind": "weights", "files": 1, "bytes": 2_000_000}
    assert app.main(["cache", "--clear"]) == 0
    assert "2.0 MB" in capsys.readouterr().out
    assert not kept.exists()

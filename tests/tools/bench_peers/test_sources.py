"""Where a peer's code comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench_peers.peer import PeerUnavailable
from tools.bench_peers.sources import SAYS, built_llama_bench, code_of


def test_a_folder_says_where_its_code_came_from(tmp_path: Path) -> None:
    (tmp_path / SAYS).write_text("https://example.org/engine@abc1234\nbuilt elsewhere\n")
    assert code_of(str(tmp_path), tmp_path) == (tmp_path, "https://example.org/engine@abc1234")


def test_a_folder_that_says_nothing_is_called_by_its_name(tmp_path: Path) -> None:
    assert code_of(str(tmp_path), tmp_path)[1] == f"folder {tmp_path.name}"


def test_neither_a_folder_nor_a_commit_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match=r"name one, or https://HOST/REPOSITORY@COMMIT"):
        code_of("https://example.org/engine", tmp_path)


def test_a_program_that_lies_there_is_not_built_again(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "llama-bench"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert built_llama_bench(tmp_path, tmp_path / "work") == program

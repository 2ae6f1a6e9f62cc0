"""Two trees in turn: what is compared, what is told, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import PATIENCE_S, wait_until
from tools.bench_pairs.__main__ import ROOT, main, report, seed_of
from tools.bench_pairs.pairs import Order, Row, compare, first_difference
from tools.bench_pairs.tree import Tree, TreeError, checked_out

TINY = [
    "--model",
    "random:tiny-llama",
    "--context",
    "16",
    "--tokens",
    "8",
    "--backend",
    "numpy",
    "--warm-up",
    "0",
]


class Played:
    """A tree that decodes at given speeds, and notes in one list when it is asked."""

    def __init__(
        self, name: str, log: list[str], speeds: Sequence[float], ids: Sequence[Sequence[int]] = ((1, 2, 3),)
    ) -> None:
        self.name = name
        self._log, self._speeds, self._ids = log, speeds, ids

    def ask(self, do: str, **what: Any) -> Any:
        self._log.append(f"{do} {self.name}")
        if do == "open":
            return {"vocab": 100, "context": 1000, "backend": "played"}
        if do == "decode":
            turn = sum(entry == f"decode {self.name}" for entry in self._log) - 1
            return {"tok_s": self._speeds[turn], "ids": self._ids[turn % len(self._ids)]}
        return {}


def order(pairs: int) -> Order:
    return Order("m", 0, "played", contexts=(16,), tokens=3, pairs=pairs)


def test_the_order_turns_with_each_pair_after_both_have_warmed_up() -> None:
    log: list[str] = []
    [row] = compare(
        Played("a", log, [10.0, 20.0, 30.0]), Played("b", log, [11.0, 20.0, 30.0]), order(3), print
    )
    assert log[:4] == ["open a", "open b", "warm_up a", "warm_up b"]
    assert [one[-1] for one in log if one.startswith("decode")] == ["a", "b", "b", "a", "a", "b"]
    assert log[-2:] == ["close a", "close b"]
    assert row.ratios == pytest.approx([1.1, 1.0, 1.0])


def test_other_tokens_are_told_with_the_first_that_differs() -> None:
    log: list[str] = []
    [row] = compare(Played("a", log, [1.0]), Played("b", log, [1.0], [[1, 2, 4]]), order(1), print)
    assert row.differ_from == 2
    assert "differ from token 2 on" in report([row])


@pytest.mark.parametrize(
    ("one", "other", "at"), [([1, 2], [1, 2], None), ([1, 2], [3, 2], 0), ([1, 2], [1], 1), ([], [1], 0)]
)
def test_sequences_differ_where_one_has_another_token_or_none(
    one: list[int], other: list[int], at: int | None
) -> None:
    assert first_difference(one, other) == at


def test_a_tree_whose_tokens_change_from_launch_to_launch_is_not_compared() -> None:
    log: list[str] = []
    restless = Played("b", log, [1.0, 1.0], [[1, 2, 3], [1, 2, 4]])
    with pytest.raises(ValueError, match="b does not make the same tokens each time"):
        list(compare(Played("a", log, [1.0, 1.0]), restless, order(2), print))


@pytest.mark.parametrize(
    ("after", "slower"), [([99.3, 99.4, 99.3, 99.2, 99.4], True), ([99.3, 99.4, 100.1, 99.9, 99.4], False)]
)
def test_slower_is_what_lies_below_the_limit_with_its_whole_interval(
    after: list[float], slower: bool
) -> None:
    row = Row("m", 16, 3, [100.0] * 5, after)
    assert row.is_slower == slower
    assert ("slower by more than 0.5%" in report([row])) == slower


def test_too_few_pairs_have_no_verdict() -> None:
    assert not Row("m", 16, 3, [100.0] * 4, [50.0] * 4).is_slower


def test_two_trees_that_are_the_same_decode_the_same_tokens(tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "pairs.json"
    assert main([str(ROOT), *TINY, "--pairs", "2", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    [row] = found["rows"]
    assert (row["same_tokens"], row["n"], row["context"]) == (True, 2, 16)
    assert len(row["ratios"]) == len(row["before_tok_s"]["samples"]) == 2
    assert found["environment"]["cpu"]["cores"] >= 1
    assert "the same" in capsys.readouterr().out


def test_a_preset_has_its_own_weights_where_they_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    assert [seed_of(model) for model in ("smollm2-135m", "tiny-llama", "a.gguf")] == [0, None, None]
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "smollm2-135m.gguf").touch()
    assert seed_of("smollm2-135m") is None


def test_rows_that_are_finished_are_told_though_a_later_model_fails(capsys: Any) -> None:
    assert main([str(ROOT), *TINY, "--pairs", "1", "--model", "random:tiny-llama", "no-such"]) == 2
    told = capsys.readouterr()
    assert "no model 'no-such'" in told.err
    assert "random:tiny-llama" in told.out and "the same" in told.out


def test_a_context_that_the_model_has_no_room_for_is_refused_before_anything_runs(capsys: Any) -> None:
    assert main([str(ROOT), *TINY, "--context", "16", "300"]) == 2
    assert "tiny-llama holds 256 tokens; 300 and 8 are asked for" in capsys.readouterr().err


def test_a_tree_that_lacks_something_says_what(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "engine" / "models").mkdir(parents=True)
    for folder in ("engine", "engine/models"):
        (tmp_path / folder / "__init__.py").touch()
    assert main([str(tmp_path), *TINY]) == 2
    error = capsys.readouterr().err
    assert f"the tree of {tmp_path}: it has no engine.models.catalogue.open_model" in error


def test_what_a_tree_raises_is_told_by_its_name() -> None:
    with Tree(ROOT, "this tree") as tree, pytest.raises(TreeError, match=r"this tree: .*no model 'gpt-7'"):
        tree.ask("open", model="gpt-7", seed=None, backend="numpy", devices=1, options={})


# --- what is checked out ------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
    return subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """With two commits of one file, and a folder for what is temporary beside it."""
    folder, temporary = tmp_path / "repository", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    git(folder, "init", "-q")
    for text in ("old", "new"):
        (folder / "file").write_text(text)
        git(folder, "add", "file")
        git(folder, "commit", "-qm", text)
    yield folder
    assert git(folder, "worktree", "list").count("\n") == 1
    assert not list(temporary.iterdir())


def test_a_commit_is_checked_out_beside_the_tree_and_removed_after(repository: Path) -> None:
    with checked_out(repository, "HEAD~1") as (folder, sha):
        assert (folder / "file").read_text() == "old"
        assert sha == git(repository, "rev-parse", "HEAD~1").strip()
    assert (repository / "file").read_text() == "new"


def test_worktrees_of_others_that_are_away_for_now_are_left_alone(repository: Path, tmp_path: Path) -> None:
    theirs, away = tmp_path / "theirs", tmp_path / "away"
    git(repository, "worktree", "add", "--detach", str(theirs))
    theirs.rename(away)
    with checked_out(repository, "HEAD"):
        pass
    away.rename(theirs)
    assert str(theirs) in git(repository, "worktree", "list")
    git(repository, "worktree", "remove", str(theirs))


def test_it_is_removed_after_an_interrupt_too(repository: Path) -> None:
    with pytest.raises(KeyboardInterrupt), checked_out(repository, "HEAD~1"):
        raise KeyboardInterrupt


@pytest.mark.usefixtures("repository")
def test_a_name_that_is_no_commit_is_told(repository: Path) -> None:
    with pytest.raises(TreeError, match="Needed a single revision"), checked_out(repository, "nonsense"):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_neither_folder_nor_process(number: signal.Signals, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "tools.bench_pairs", str(ROOT), *TINY, "--pairs", "1000000"]
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    wait_until(lambda: "pair 2 of" in process.stderr.readline())
    children = [int(child) for child in _children(process.pid)]
    assert len(children) == 2
    process.send_signal(number)
    process.stderr.close()
    process.wait(PATIENCE_S)
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def _children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()

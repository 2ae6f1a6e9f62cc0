"""What all commands have in common: their help, errors in one line with a code, options, signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engine.cli import app
from engine.cli.options import key_value
from tests.engine.cli.commands import COMMANDS, TINY, run


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_and_takes_json(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        app.main([command, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        app.main([])
    assert stop.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["generate", "--model", "no-such", "--prompt", "x"], "no-such"),
        (["generate", *TINY, "--prompt", "x"], "no tokenizer"),
        (["generate", *TINY, "--prompt-ids", "1 two"], "--prompt-ids"),
        (["generate", *TINY, "--prompt-ids", "99999"], "99999"),
        (["generate", *TINY, "--prompt-ids", "1", "--max-tokens", "0"], "max_tokens is 0"),
        (["generate", *TINY, "--prompt-ids", "1", "--temperature", "-1"], "temperature is -1"),
        (["generate", *TINY, "--prompt-ids", "1", "--stop", "x"], "--stop"),
        (["generate", *TINY, "--prompt-ids", "1", "--devices", "2"], "devices is 2"),
        (["generate", *TINY, "--prompt-ids", "1", "--option", "warp=9"], "warp"),
        (["score", "/no/such/file"], "/no/such/file"),
        (["bench", *TINY, "--context", "99999"], "99999"),
        (["bench", *TINY, "--out", "/no/such/folder/x.json"], "/no/such/folder"),
        (["bench", *TINY, "--repeats", "0"], "repeats is 0"),
        (["bench", *TINY, "--git-sha", "main"], "7 to 64 hexadecimal digits"),
        (["pull", "no-such"], "no-such"),
        (["roofline", "--hardware", "H300"], "H300"),
        (["roofline", "--mbu", "36"], "--mbu"),
        (["roofline", "--kv-bytes", "-1"], "--kv-bytes"),
        (["roofline", "--model", "tiny-llama", "--context", "99999"], "99999"),
    ],
)
def test_what_the_caller_can_change_is_one_line_and_code_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *argv)
    assert code == 2
    assert out == ""
    assert err.startswith(f"monolane {argv[0]}: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_commit_that_the_repository_contradicts_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.cli.options.git_facts", lambda _folder: {"sha": "fedcba9876"})
    code, _, err = run(capsys, "bench", *TINY, "--git-sha", "1234567")
    assert code == 2
    assert "this is a checkout of fedcba9876" in err


def test_text_that_is_not_utf8_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t").write_bytes(b"abc\xff")
    code, _, err = run(capsys, "score", str(tmp_path / "t"))
    assert code == 2
    assert "not UTF-8 text (byte 3)" in err


@pytest.mark.parametrize("text", ["novalue", "=1", ""])
def test_an_option_without_key_or_value_is_a_usage_error(text: str) -> None:
    with pytest.raises(SystemExit) as stop:
        app.main(["generate", *TINY, "--prompt-ids", "1", "--option", text])
    assert stop.value.code == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=1.5", 1.5), ("a=true", True), ("a=mailbox", "mailbox"), ("a=b=c", "b=c")],
)
def test_options_have_the_type_that_they_read_as(text: str, value: object) -> None:
    assert key_value(text) == ("a", value)
    assert type(key_value(text)[1]) is type(value)


@pytest.mark.slow
def test_a_closed_pipe_is_quiet() -> None:
    command = [sys.executable, "-m", "engine", "generate", *TINY, "--prompt-ids", "1", "--max-tokens", "200"]
    program = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    assert program.stderr is not None
    program.stdout.close()
    assert program.wait(60) == app.BROKEN_PIPE
    assert program.stderr.read() == b""
    program.stderr.close()


@pytest.mark.slow
def test_ctrl_c_ends_a_generation_cleanly() -> None:
    argv = ["generate", *TINY, "--prompt-ids", "1", "--max-tokens", "480", "--ignore-eos"]
    slow = (
        "import signal, sys, time\nfrom engine.backends.numpy_backend import Reference\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored by what runs in the background
        "forward = Reference.forward\n"
        "Reference.forward = lambda *a, **k: (time.sleep(0.2), forward(*a, **k))[1]\n"
        f"from engine.cli.app import main\nsys.exit(main({argv!r}))"
    )
    program = subprocess.Popen([sys.executable, "-c", slow], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert program.stdout is not None
    os.read(program.stdout.fileno(), 1)  # the first token is out
    program.send_signal(signal.SIGINT)
    _, err = program.communicate(timeout=30)
    assert program.returncode == app.INTERRUPTED
    assert err == b"\n"


def test_help_comes_without_loading_a_model() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "engine", "--help"], capture_output=True, check=True, text=True, timeout=60
    )
    assert all(command in done.stdout for command in COMMANDS)
    assert time.monotonic() - start < 10


def test_a_command_imports_no_other(tmp_path: Path) -> None:
    code = (
        "import sys; from engine.cli import app; app.main(['cache']);"
        "print([name for name in sys.modules if name.startswith('engine.cli.')])"
    )
    environment = {**os.environ, "MONOLANE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "engine.cli.bench" not in done.stdout

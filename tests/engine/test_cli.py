"""Each command does its work on tiny models, speaks JSON, and fails with one line and a code."""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.backends import BACKENDS
from engine.cli import app, bench, check, generate, pull, score
from engine.cli.options import key_value
from engine.cli.terminal import ProgressBar, json_text, table
from engine.errors import BackendUnavailable, CheckpointError
from engine.measuring.measurement import Measurement, read_measurements
from engine.models.catalogue import Model, open_model
from engine.models.checkpoints.write import write_checkpoint
from engine.models.presets import load_preset, preset_names
from engine.models.prompt import Prompt
from engine.models.weights import RandomWeights
from engine.progress import Progress
from engine.reference import Reference
from engine.sampling import choose

COMMANDS = ("models", "pull", "generate", "score", "bench", "roofline", "worker", "check", "cache")
TINY = ("--model", "random:tiny-llama", "--backend", "numpy")


class Letters:
    """A tokenizer of one token a byte, enough to put text through a random model."""

    eos_ids = frozenset({0})

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        if prompt.messages:
            return [ord(c) for m in prompt.messages for c in f"{m.role[0]}:{m.content}"]
        return list((prompt.text or "").encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([65 + token % 26])

    def speller(self, _prompt: Prompt) -> Letters:
        return self


@pytest.fixture
def with_letters(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The tiny random model, opened by the CLI, can read."""
    plain = open_model("random:tiny-llama")
    model = Model(plain.config, plain.weights, Letters(), plain.source, plain.digest)  # type: ignore[arg-type]
    for module in (generate, score, bench):
        monkeypatch.setattr(module, "model_of", lambda _args: model)
    return model


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = app.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    return json.loads(out)


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


# --- one place for errors -----------------------------------------------------------------------------


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
        "import sys, time\nfrom engine.backends.numpy_backend import Reference\n"
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


# --- models, pull -------------------------------------------------------------------------------------


def test_models_lists_what_is_here_and_how_to_get_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {entry["name"]: entry for entry in run_json(capsys, "models")}
    assert by_name["tiny-llama"]["available"] is True
    assert by_name["laneformer-2b"]["params"] == 2_320_069_632
    _, out, _ = run(capsys, "models")
    assert all(name in out for name in by_name)


@pytest.fixture
def a_hundred_gbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of 100 GB/s, whatever this machine's is."""
    monkeypatch.setattr("engine.cli.models.read_gbs", lambda _backend: (100.0, "said so"))


@pytest.mark.usefixtures("a_hundred_gbs")
def test_models_describes_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = replace(load_preset("tiny-llama").config, family="qwen2", qkv_bias=True, tied_head=True)
    folder = write_checkpoint(RandomWeights(config), tmp_path / "m")

    facts = run_json(capsys, "models", str(folder))

    assert (facts["family"], facts["parameters"]) == ("qwen2", config.parameters)
    assert facts["weight_bytes_a_token"] == 2 * (config.parameters + config.hidden)
    assert facts["beyond_llama"] == ["biases on queries, keys and values"]
    assert facts["storage"] == ["F16"]
    _, out, _ = run(capsys, "models", "qwen3-8b")
    assert "family: qwen3\n" in out
    assert "parameters: 8,190,735,360\n" in out


@pytest.mark.usefixtures("a_hundred_gbs")
@pytest.mark.parametrize("name", [*preset_names(), "random:qwen3-8b:fp8_block", "random:qwen3-8b:q8_0"])
def test_models_says_how_fast_memory_lets_each_family_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("engine.cli.models.first_usable", lambda: "cpu")
    facts = run_json(capsys, "models", name)
    read = facts["weight_bytes_a_token_there"]
    routers_in_fp32 = 1.02 if "F32" in facts["storage_there"] else 1.0
    assert facts["weight_bytes_a_token"] <= read <= routers_in_fp32 * facts["weight_bytes_a_token"]
    assert facts["tok_s_at_most"] == round(100e9 / read, 1)
    full = read + facts["cache_bytes_a_token_at_full_context"]
    assert facts["tok_s_at_most_at_full_context"] == round(100e9 / full, 1)


@pytest.mark.usefixtures("a_hundred_gbs")
def test_models_counts_what_a_gpu_unpacks_as_it_lies_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cli.models.first_usable", lambda: "cuda")
    facts = run_json(capsys, "models", "random:qwen3-8b:q8_0")
    assert facts["storage_there"] == ["F16", "Q8_0"]
    monkeypatch.setattr(
        "engine.cli.models.storages",
        lambda backend, _model: raised(BackendUnavailable(f"the backend {backend} lacks GELU")),
    )
    facts = run_json(capsys, "models", "tiny-llama")
    assert facts["not_here"] == "the backend cuda lacks GELU"


def raised(error: Exception) -> NoReturn:
    raise error


def test_pull_prints_where_the_weights_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pull, "pull", lambda name, _progress: Path("/models") / name)
    assert run(capsys, "pull", "smollm2-135m")[:2] == (0, "/models/smollm2-135m\n")
    assert run_json(capsys, "pull", "smollm2-135m")["path"] == "/models/smollm2-135m"


# --- generate -----------------------------------------------------------------------------------------


def expected_ids(model: Model, prompt: list[int], count: int) -> list[int]:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(prompt) + count)
    ids = list(prompt)
    logits = reference.forward(prompt, cache, logits="last")
    for _ in range(count):
        ids.append(int(logits[0].argmax()))
        logits = reference.forward(ids[-1:], cache, logits="last")
    return ids[len(prompt) :]


def test_generate_prints_ids_where_there_is_no_tokenizer_and_speed_on_stderr(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(
        capsys, "generate", *TINY, "--prompt-ids", "3,4 5", "--max-tokens", "6", "--ignore-eos"
    )
    assert code == 0
    assert [int(t) for t in out.split()] == expected_ids(open_model("random:tiny-llama"), [3, 4, 5], 6)
    assert "tok/s, 6 tokens (length)" in err
    assert "numpy on " in err


def test_generate_streams_text_and_json_holds_the_same(
    with_letters: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("generate", *TINY, "--prompt", "abc", "--max-tokens", "6", "--ignore-eos")
    ids = expected_ids(with_letters, [97, 98, 99], 6)
    text = "".join(chr(65 + i % 26) for i in ids)
    assert run(capsys, *argv)[1] == text + "\n"
    found = run_json(capsys, *argv)
    assert (found["text"], found["tokens"], found["finish_reason"]) == (text, ids, "length")
    assert found["timings"]["completion_tokens"] == 6
    assert found["timings"]["prompt_tokens"] == 3
    assert found["timings"]["decode_tok_s"] > 0


def test_generate_echoes_the_prompt_when_asked(
    with_letters: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out, _ = run(capsys, "generate", *TINY, "--prompt", "abc", "--max-tokens", "2", "--echo")
    assert out.startswith("abc")


def test_generate_ends_before_a_stop_string(with_letters: Model, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", *TINY, "--prompt", "abc", "--max-tokens", "8", "--ignore-eos")
    whole = run_json(capsys, *argv)["text"]
    stop = whole[3:5]
    found = run_json(capsys, *argv, "--stop", stop)
    assert found["text"] == whole[: whole.index(stop)]
    assert found["finish_reason"] == "stop"
    assert found["timings"]["completion_tokens"] == whole.index(stop) + 2


def test_generate_reads_its_prompt_from_a_file_or_from_stdin(
    with_letters: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p").write_text("abc")
    argv = ("generate", *TINY, "--max-tokens", "4", "--ignore-eos")
    expected = run_json(capsys, *argv, "--prompt", "abc")["tokens"]
    assert run_json(capsys, *argv, "--prompt-file", str(tmp_path / "p"))["tokens"] == expected
    monkeypatch.setattr("sys.stdin", io.StringIO("abc"))
    assert run_json(capsys, *argv, "--prompt-file", "-")["tokens"] == expected


def test_generate_puts_a_chat_through_the_template(
    with_letters: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ("generate", *TINY, "--max-tokens", "4", "--ignore-eos", "--prompt", "hi")
    plain = run_json(capsys, *argv, "--prompt", "s:beu:hi")["tokens"]
    assert run_json(capsys, *argv, "--chat", "--system", "be")["tokens"] == plain


@pytest.mark.parametrize(
    ("flags", "words"), [(("--chat", "--suffix", "x"), "--suffix"), (("--system", "x"), "--system")]
)
def test_flags_that_make_no_sense_together_are_refused(
    flags: tuple[str, ...], words: str, with_letters: Model, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "generate", *TINY, "--prompt", "hi", *flags)
    assert code == 2
    assert words in err


def test_a_sampled_generation_tells_the_seed_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    argv = (
        "generate",
        *TINY,
        "--prompt-ids",
        "3 4",
        "--max-tokens",
        "8",
        "--temperature",
        "1",
        "--ignore-eos",
    )
    first, other = run_json(capsys, *argv), run_json(capsys, *argv)
    assert first["sampling"]["seed"] != other["sampling"]["seed"]
    again = run_json(capsys, *argv, "--seed", str(first["sampling"]["seed"]))
    assert again["tokens"] == first["tokens"]


def test_sampling_flags_reach_the_sampler(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("generate", *TINY, "--prompt-ids", "3 4", "--max-tokens", "1", "--ignore-eos")
    filters = ("--temperature", "0.7", "--top-k", "9", "--top-p", "0.9", "--min-p", "0.05")
    penalties = ("--repetition-penalty", "1.2", "--frequency-penalty", "0.5", "--logit-bias", "7=2.5")
    found = run_json(capsys, *argv, *filters, *penalties, "--seed", "4")
    assert found["sampling"] == {
        "temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.2,
        "frequency_penalty": 0.5, "presence_penalty": 0.0, "seed": 4, "logit_bias": [[7, 2.5]],
    }  # fmt: skip
    model = open_model("random:tiny-llama")
    reference = Reference(model.weights)
    logits = reference.forward([3, 4], reference.new_cache(2), logits="last")
    params = generate.SamplingParams(**found["sampling"])
    assert found["tokens"] == [choose(logits[0], params, [3, 4], 2)]


# --- score --------------------------------------------------------------------------------------------


def exact_score(model: Model, tokens: list[int]) -> list[float]:
    reference = Reference(model.weights)
    rows = reference.forward(tokens, reference.new_cache(len(tokens))).astype(np.float64)
    logs = rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))
    return [float(logs[i, t]) for i, t in enumerate(tokens[1:])]


def test_score_is_the_log_softmax_of_each_next_token(
    with_letters: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("hello there, world")
    (found,) = run_json(capsys, "score", *TINY, str(tmp_path / "t"))
    exact = exact_score(with_letters, list(b"hello there, world"))
    assert found["log_likelihoods"] == pytest.approx(exact, abs=1e-5)
    assert found["log_likelihood"] == pytest.approx(sum(exact), abs=1e-4)
    assert found["perplexity"] == pytest.approx(math.exp(-sum(exact) / len(exact)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(-sum(exact) / math.log(2) / 18, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "words"),
    [(("--window", "1"), "--window is 1"), (("--window", "8", "--stride", "8"), "--stride is 8")],
)
def test_windows_that_cannot_work_are_refused(
    flags: tuple[str, ...],
    words: str,
    with_letters: Model,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "t").write_text("hello")
    code, _, err = run(capsys, "score", *TINY, str(tmp_path / "t"), *flags)
    assert code == 2
    assert words in err


def test_a_text_of_one_token_has_no_score(
    with_letters: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t").write_text("h")
    code, _, err = run(capsys, "score", *TINY, str(tmp_path / "t"))
    assert code == 2
    assert "1 tokens" in err


# --- bench, roofline, check ---------------------------------------------------------------------------


@pytest.fixture
def short_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.measuring.bench.WARM_UP_S", 0.0)
    monkeypatch.setattr("engine.backends.numpy_backend.NumpyBackend.measure_bandwidth", lambda _self: (40.0,))


@pytest.mark.usefixtures("short_bench")
def test_bench_prints_and_writes_schema_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "m.json"
    argv = ("bench", *TINY, "--context", "16", "--tokens", "8", "--repeats", "2", "--out", str(out))
    printed = Measurement.from_dict(run_json(capsys, *argv))
    assert read_measurements(out) == [printed]
    assert (printed.settings.context, printed.settings.tokens, printed.settings.repeats) == (16, 8, 2)


@pytest.mark.usefixtures("short_bench")
def test_bench_of_several_contexts_is_a_table_and_a_list(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m.json"
    argv = ("bench", *TINY, "--context", "8", "24", "--tokens", "4", "--repeats", "1", "--out", str(out))
    code, text, _ = run(capsys, *argv)
    assert code == 0
    assert [m.settings.context for m in read_measurements(out)] == [8, 24]
    assert "tok/s" in text
    assert "n too small" in text
    assert text.count("tokens equal") == 2
    assert "gate_up" in text


@pytest.mark.usefixtures("short_bench")
def test_bench_writes_a_trace_of_the_asked_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "t.json"
    argv = ("bench", *TINY, "--context", "8", "--tokens", "4", "--repeats", "1")
    assert run(capsys, *argv, "--trace", str(trace), "--trace-tokens", "1:2")[0] == 0
    blocks = [e["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "X"]
    assert blocks.count("sample") == 1
    assert blocks.count("qkv 0") == 1


@pytest.mark.usefixtures("short_bench")
def test_bench_says_no_when_the_tokens_are_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.measuring.verification.agrees", lambda *_rows: False)
    code, out, _ = run(capsys, "bench", *TINY, "--context", "8", "--tokens", "4", "--repeats", "1")
    assert code == 1
    assert "DIFFERENT" in out


def test_roofline_answers_in_json_what_the_table_shows(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("roofline", "--active", "2e9", "--layers", "25", "--devices", "8", "--hardware", "h200")
    found = run_json(capsys, *argv, "--bandwidth", "read")
    assert found["launch_us"] == 1125.0
    assert round(found["rows"][0]["ceiling_tok_s"]) == 9040
    _, out, _ = run(capsys, *argv, "--mbu", "0.36", "--tokens", "50000")
    assert "8 x H200" in out
    assert "1,125 us" in out
    assert "889 tok/s" in out


@pytest.mark.parametrize("model", ["laneformer-2b", "GPT-OSS-120B", "tiny-llama"])
def test_roofline_needs_no_weights(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "roofline", "--model", model, "--devices", "8")
    assert found["bytes_per_token"]["weights"] > 0


def test_roofline_adds_the_kv_that_it_is_told_of(capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("--active", "2e9", "--context", "100", "--kv-bytes", "1000", "--hardware", "H200")
    found = run_json(capsys, "roofline", *argv)
    assert found["bytes_per_token"] == {"weights": 4e9, "kv": 100_000.0}


@pytest.mark.slow
def test_check_says_what_runs_here_and_at_what_bandwidth(capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "check", *TINY)
    assert found["ok"] is True
    (backend,) = found["backends"]
    assert backend["backend"] == "numpy"
    assert backend["usable"] is True
    assert backend["read_gbs"][0] > 0


def test_check_fails_in_plain_words_when_the_backend_cannot_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "availability", lambda: [("cuda", False, "there is no NVIDIA driver")])
    code, out, _ = run(capsys, "check", "--model", "random:tiny-llama", "--backend", "cuda")
    assert code == 2
    assert "there is no NVIDIA driver" in out


def test_check_finds_a_backend_that_computes_wrong_tokens(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.backends.numpy_launch.choose", lambda *_args: 1)
    code, out, _ = run(capsys, "check", *TINY)
    assert code == 2
    assert "its tokens or logits differ" in out


def test_check_survives_a_backend_that_does_not_open(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_args: object, **_kwargs: object) -> None:
        raise BackendUnavailable("the driver is too old")

    monkeypatch.setattr(check, "open_backend", refuse)
    code, out, _ = run(capsys, "check", *TINY)
    assert code == 2
    assert "the driver is too old" in out


@pytest.fixture
def everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here is every backend, and each reads 100 GB/s."""

    def find(name: str, *_: object) -> check.Finding:
        return check.Finding(name, True, "", read_gbs=(100.0,))

    monkeypatch.setattr(check, "availability", lambda: [(name, True, "") for name in BACKENDS])
    monkeypatch.setattr(check, "try_backend", find)


@pytest.mark.usefixtures("everything_runs")
def test_check_says_the_bytes_that_each_backend_will_hold(capsys: pytest.CaptureFixture[str]) -> None:
    """NumPy keeps FP32, the others Q8_0 as it ships."""
    _, out, _ = run(capsys, "check", "--model", "random:smollm2-135m:q8_0", "--backend", "auto")
    said = dict(re.findall(r"on (\w+): (\d+) MB a token", out))
    assert {name: int(mb) for name, mb in said.items()} == {"numpy": 544, "cpu": 149, "cuda": 149}


@pytest.mark.usefixtures("everything_runs")
def test_check_says_which_backend_does_not_run_the_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_name: str, _model: Model) -> None:
        raise BackendUnavailable("it lacks sinks")

    monkeypatch.setattr(check, "storages", refuse)
    _, out, _ = run(capsys, "check", *TINY)
    assert "on numpy: it lacks sinks" in out


@pytest.mark.slow
def test_check_fails_when_the_model_is_missing_and_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str, *, seed: int | None = None) -> Model:
        if name == "laneformer-2b" and seed is None:
            raise CheckpointError("get it with `python -m engine pull laneformer-2b`")
        return open_model(name, seed=seed)

    monkeypatch.setattr(check, "open_model", missing)
    code, out, _ = run(capsys, "check", "--model", "laneformer-2b", "--backend", "numpy")
    assert code == 2
    assert "pull laneformer-2b" in out
    assert "MB a token" in out, "what the machine could do is told all the same"


# --- what a person sees -------------------------------------------------------------------------------


def test_a_table_puts_numbers_to_the_right() -> None:
    lines = table(["name", "tok/s"], [["a", "1.5"], ["bcd", "1,000.5"]]).splitlines()
    assert lines == ["name    tok/s", "a         1.5", "bcd   1,000.5"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.mark.slow
@given(json_values)
def test_json_on_fewer_lines_is_the_same_json(value: Any) -> None:
    assert json.loads(json_text(value)) == value


def test_raw_samples_take_one_line() -> None:
    assert json_text({"itl_us": [[1.5, 2e-7], [3]]}).splitlines()[2:4] == ["    [1.5, 2e-07],", "    [3]"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_progress_bar_draws_on_a_terminal_and_leaves_nothing_behind() -> None:
    screen = Terminal()
    with ProgressBar("work", screen) as bar:
        bar(Progress(1, 2, "steps"))
    assert "work [##############..............]  50% 1 of 2 steps" in screen.getvalue()
    assert screen.getvalue().split("\r")[-2].strip() == ""


def test_a_progress_bar_is_silent_elsewhere() -> None:
    stream = io.StringIO()
    with ProgressBar("work", stream) as bar:
        bar(Progress(1, 2, "steps"))
    assert stream.getvalue() == ""


def test_help_comes_without_loading_a_model() -> None:
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "engine", "--help"], capture_output=True, check=True, text=True, timeout=60
    )
    assert all(command in done.stdout for command in COMMANDS)
    assert time.monotonic() - start < 10


# --- worker -------------------------------------------------------------------------------------------


def test_worker_hands_its_flags_to_the_serving_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []

    class Recorder:
        def __init__(self, *args: object, **kwargs: object) -> None:
            made.append((args, kwargs))

        def run(self) -> None:
            logging.getLogger("engine.serving").warning("up")

    monkeypatch.setattr("engine.serving.worker.Worker", Recorder)
    monkeypatch.setattr(logging, "root", logging.RootLogger(logging.WARNING))
    monkeypatch.setattr(logging.Logger, "root", logging.root)
    monkeypatch.setattr(logging.Logger, "manager", logging.Manager(logging.root))
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    system = tmp_path / "system.txt"
    system.write_text("Be brief.")
    argv = ("worker", "--redis", "redis://r/0", "--name", "w", "--model", "words", "--backend", "paced")
    argv = (*argv, "--model", "markdown", "--resident-mib", "2")
    argv = (*argv, "--pin", str(system), "--keep-prefixes", "--rows", "3")
    code, _, err = run(capsys, *argv, "--option", "tok_s=50", "--devices", "1", "--fewer-devices", "--json")
    assert code == 0
    given = {
        "devices": 1, "options": {"tok_s": 50}, "rows": 3, "fewer_devices": True,
        "pinned": [Prompt("Be brief.")], "remember_in": tmp_path / "prefixes",
        "more_models": ["markdown"], "resident_bytes": 2 << 20,
    }  # fmt: skip
    assert made == [(("redis://r/0", "words", "paced", "w"), given)]
    line = json.loads(err)
    assert (line["level"], line["logger"], line["event"]) == ("warning", "engine.serving", "up")


def test_only_a_worker_takes_the_test_engine() -> None:
    with pytest.raises(SystemExit) as stop:
        app.main(["bench", "--backend", "paced"])
    assert stop.value.code == 2


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

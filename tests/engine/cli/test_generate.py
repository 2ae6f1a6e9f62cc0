"""`generate`: text or ids as they come, and the same in JSON."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from engine.cli import generate
from engine.models.catalogue import Model, open_model
from engine.reference import Reference
from engine.sampling import choose
from tests.engine.cli.commands import TINY, run, run_json


def expected_ids(model: Model, prompt: list[int], count: int) -> list[int]:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(prompt) + count)
    ids = list(prompt)
    logits = reference.forward(prompt, cache, scored_from=len(prompt) - 1)
    for _ in range(count):
        ids.append(int(logits[0].argmax()))
        logits = reference.forward(ids[-1:], cache)
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
    logits = reference.forward([3, 4], reference.new_cache(2), scored_from=1)
    params = generate.SamplingParams(**found["sampling"])
    assert found["tokens"] == [choose(logits[0], params, [3, 4], 2)]

"""The whole product in a short form: everything real, with a model that is small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.models.catalogue import open_model
from tests.engine.serving.workers import write_chatterbox
from tools.bench_product.answer import Answer, new_tokens, spread
from tools.bench_product.product import Product, ProductError, Setup
from tools.bench_product.prompts import LINES, NEW_TOKENS, TURN, prompt_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_product_gives_what_generate_gives_and_survives_kills(tmp_path: Path) -> None:
    model, out = write_chatterbox(tmp_path / "chatterbox"), tmp_path / "product.json"
    flags = ("--backend", "numpy", "--repeats", "1", "--tokens", "32", "--long-tokens", "2000")
    # In a process of its own: autobahn's asyncio side and daphne's Twisted side cannot live in one.
    command = [sys.executable, "-m", "tools.bench_product", "--model", str(model), *flags]
    # It measures nothing of the results that come with the project, which take long to import.
    environment = {**os.environ, "MONOLANE_WITHOUT_RESULTS": "1"}
    command += ["--lines", "0", "8", "--out", str(out)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=200)
    found = json.loads(out.read_text())
    assert found["speed"]["defaults"]["tokens"] == 32
    assert found["speed"]["greedy"]["decode_tok_s"]["median"] > 0
    short, long = found["first_token"]
    assert short["cached_tokens"] == short["prompt_tokens"] - 1
    assert long["cached_tokens"] == long["prompt_tokens"] - 1
    assert 0 < long["turn_tokens"] < long["cached_tokens"] and long["turn_ms"]["n"] == 1
    assert found["http"]["overhead_ms"]["n"] == 1
    assert 0 < found["recovery"]["second_worker_s"] < 10
    assert 0 < found["recovery"]["restart_s"] < 30
    assert found["recovery"]["restarts_s"]["n"] == 1
    assert found["environment"]["backend"]["name"] == "numpy"


def test_the_longest_prompt_and_its_turn_fit_into_the_default_model() -> None:
    model = open_model("smollm2-135m")
    assert model.tokenizer is not None
    turn = prompt_of(9, max(LINES), "b" + TURN)
    assert len(model.tokenizer.encode(turn)) + NEW_TOKENS < model.config.context


def test_an_answer_counts_from_its_first_frame() -> None:
    answer = Answer(asked=10.0)
    frames = ((10.004, 1), (10.5, 100), (11.004, 401))
    for now, tokens in frames:
        frame = {"type": "tokens", "seq": answer.tokens, "n": tokens - answer.tokens, "text": "a"}
        assert not answer.add(frame, now)
    assert answer.add({"type": "done", "text": "!", "timings": {"prefill_ms": 1.0}}, 11.1)
    assert answer.first_token_ms == pytest.approx(4)
    assert answer.tok_s == pytest.approx(400)
    assert answer.silence_s == pytest.approx(0.504)
    assert answer.text == "aaa!"


def test_a_gap_or_an_error_ends_the_measurement() -> None:
    with pytest.raises(ProductError, match="begins at token 3 after 0"):
        Answer(0.0).add({"type": "tokens", "seq": 3, "n": 1, "text": ""}, 1.0)
    with pytest.raises(ProductError, match="the page was told: no worker"):
        Answer(0.0).add({"type": "error", "message": "no worker"}, 1.0)


def test_a_spread_says_how_many_there_were() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "n": 3}


def test_one_prompt_that_was_not_kept_does_not_speak_for_the_others() -> None:
    said = [{"prompt_tokens": 100.0, "cached_tokens": float(kept)} for kept in (0, 90, 92)]
    assert new_tokens([Answer(0.0, timings=timings) for timings in said]) == 10


def test_its_processes_keep_their_bytecode_as_those_of_make_run_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    product = Product(tmp_path, Setup("random:tiny-llama", "numpy", 1))
    assert "PYTHONDONTWRITEBYTECODE" not in product._environment


def test_a_product_that_cannot_start_is_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where the supervisor's folder should be")
    product = Product(tmp_path, Setup("random:tiny-llama", "numpy", 1))
    with pytest.raises(ProductError, match="the supervisor has ended"), product.running():
        pass

"""Commands run in this process, and the tiny model that they run on."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.cli import app
from engine.models.prompt import Prompt

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


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = app.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert code == 0, err
    return json.loads(out)

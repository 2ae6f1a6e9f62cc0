"""Prompts beside llama.cpp's, with a llama-bench that answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.bench_peers.command import main

PROGRAM = """#!{python}
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
repeats = int(options["-r"])
rows = [
    {{"n_prompt": int(n), "n_gen": int(options["-n"]), "cpu_info": "a processor", "backends": "CPU",
      "build_commit": "abc1234", "samples_ts": [1.0] + [100.0 + int(n)] * (repeats - 1)}}
    for n in options["-p"].split(",")
]
print(json.dumps(rows))
"""


@pytest.fixture
def llama_bench(tmp_path: Path) -> Path:
    """A folder with the program; the first repetition of whatever it measures is slow."""
    program = tmp_path / "llama.cpp" / "llama-bench"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return program.parent


def test_prompts_alone_take_turns_and_leave_out_the_first_repetition(
    llama_bench: Path, tmp_path: Path
) -> None:
    asked = ["--backend", "cpu", "--model", "tiny-llama:8", "--tokens", "0", "--prompts", "8", "16"]
    folders = ["--llama-cpp", str(llama_bench), "--out", str(tmp_path), "--work", str(tmp_path / "work")]

    code = main([*asked, "--peers", "llama.cpp", "--repeats", "2", *folders])

    assert code == 0
    lines = [json.loads(line) for line in (tmp_path / "peers" / "cpu-prompts.jsonl").read_text().splitlines()]
    assert [(line["measures"], line["context"], line["tokens"]) for line in lines] == [
        ("prefill", 8, 0),
        ("prefill", 16, 0),
    ]
    assert [line["samples"] for line in lines] == [[108.0] * 4, [116.0] * 4]
    assert all(len(line["beside"]["samples"]) == 4 for line in lines)
    assert not list(tmp_path.glob("*-peers.json")), "no decode was asked for"

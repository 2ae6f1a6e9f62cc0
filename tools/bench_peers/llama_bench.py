"""llama.cpp as a peer: its own llama-bench, on a GGUF file, started anew in each turn."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tools.bench_peers.peer import ANSWER_S, Facts, PeerUnavailable, Shape
from tools.bench_peers.sources import library_path


class LlamaBench:
    """Implements peer.Peer. Runs once with few tokens to learn what it is. Raises PeerUnavailable.

    A sample is what llama-bench gives one repetition: `tokens` single steps behind `context` positions,
    with flash attention and every layer on the GPU, and no choice of a token.
    """

    def __init__(
        self, binary: Path, model: Path, shape: Shape, source: str, precision: str, *, gpu_name: str = ""
    ) -> None:
        self.source = source
        self._binary, self._model, self._shape = binary, model, shape
        self._gpu = bool(gpu_name)
        (row,) = self._run(1, generated=8)
        device = gpu_name or str(row["cpu_info"])
        if self._gpu and not row.get("gpu_info"):
            raise PeerUnavailable(f"this llama-bench ({row['backends']}) sees no GPU here")
        more = {
            "dtype": "float16" if precision == "F16" else precision,
            "tokens": shape.tokens,
            "settings": "flash attention, CUDA graphs as built" if self._gpu else "on the CPU",
            "build_number": row.get("build_number"),
        }
        self.facts = Facts(f"llama.cpp {row['build_commit']} ({precision}, flash attention)", device, more)

    def measure(self, repeats: int) -> list[float]:
        (done,) = self._run(repeats, generated=self._shape.tokens, behind=self._shape.context)
        return [float(sample) for sample in done["samples_ts"]]

    def read(self, lengths: Sequence[int], repeats: int) -> list[list[float]]:
        """The first repetition of each length is left out: it also chooses kernels."""
        done = {int(row["n_prompt"]): row["samples_ts"] for row in self._run(1 + repeats, prompts=lengths)}
        return [[float(sample) for sample in done[length][1:]] for length in lengths]

    def close(self) -> None:
        """Nothing of it lives between turns."""

    def _run(
        self, repeats: int, *, prompts: Sequence[int] = (0,), generated: int = 0, behind: int = 0
    ) -> list[Mapping[str, Any]]:
        """A row for each prompt, or one for what is generated."""
        # Passes as long as the longest prompt: by default it reads 512 tokens at a time, which is slower.
        batch = str(max(*prompts, 2048))
        command = [
            str(self._binary), "-m", str(self._model), "-ngl", "99" if self._gpu else "0",
            "-p", ",".join(map(str, prompts)), "-n", str(generated), "-d", str(behind),
            "-b", batch, "-ub", batch, "-r", str(repeats), "-fa", "1", "-o", "json",
        ]  # fmt: skip
        environment = {**os.environ, "LD_LIBRARY_PATH": library_path(self._binary.parent)}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=ANSWER_S, check=False, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PeerUnavailable(f"llama-bench could not run: {error}") from error
        if done.returncode:
            last = done.stderr.strip().splitlines() or ["nothing"]
            raise PeerUnavailable(f"llama-bench ended with {done.returncode}: {last[-1][:300]}")
        try:
            rows = list(json.loads(done.stdout))
        except (ValueError, TypeError) as error:
            raise PeerUnavailable(f"llama-bench gave no JSON: {done.stdout[:200]!r}") from error
        if len(rows) != len(prompts):
            raise PeerUnavailable(f"llama-bench gave {len(rows)} results, not {len(prompts)}")
        return rows

"""What a run leaves behind: our points as schema 2, a line for each peer, and what could not be had."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.cli.terminal import json_text, table
from engine.measuring.measurement import Measurement
from engine.measuring.statistics import median
from tools.bench_peers.peer import Facts

OURS = "monolane"
_DIGITS = 2


@dataclass(frozen=True, slots=True)
class Turns:
    """One engine's speeds of a model, tokens a second, a list for each turn.

    Of decode: `tokens` behind `context` positions. Of prompts: `context` tokens, and none after them.
    """

    model: str
    context: int
    tokens: int
    facts: Facts
    source: str
    samples: Sequence[Sequence[float]]

    @property
    def measures(self) -> str:
        return "decode" if self.tokens else "prefill"

    @property
    def point(self) -> tuple[str, int, int]:
        """What engines are compared at."""
        return self.model, self.context, self.tokens

    @property
    def all(self) -> list[float]:
        return [round(sample, _DIGITS) for turn in self.samples for sample in turn]


class Results:
    """Writes into a folder, each thing as soon as it is known."""

    def __init__(self, out: Path, hardware: str, commit: str, environment: Mapping[str, Any]) -> None:
        self.out = out
        self.hardware, self.commit, self.environment = hardware, commit, environment
        self.created = datetime.now(UTC).isoformat(timespec="seconds")
        self.turns: list[Turns] = []
        self.measured: list[Measurement] = []

    def add_turns(self, found: Sequence[Turns]) -> None:
        """Of one model: ours and every peer that has figures."""
        self.turns += found
        ours = {turns.point: turns for turns in self.turns if turns.facts.name == OURS}
        lines = [
            self.line(turns, ours[turns.point])
            for turns in self.turns
            if turns.facts.name != OURS and turns.point in ours
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        kind = "" if any(turns.tokens for turns in self.turns) else "-prompts"
        self._write(f"peers/{self.hardware}{kind}.jsonl", text)

    def add(self, measurement: Measurement) -> None:
        self.measured.append(measurement)
        same = [m.to_dict() for m in self.measured if m.model.name == measurement.model.name]
        self._write(f"{measurement.model.name}-{self.hardware}-peers.json", json_text(same) + "\n")

    def write_summary(self, not_run: Mapping[str, str], seconds: Mapping[str, float]) -> None:
        document = {
            "check": "peers beside ours",
            "created": self.created,
            "git_sha": self.commit,
            "not_run": dict(not_run),
            "stages_s": {stage: round(s, 1) for stage, s in seconds.items()},
            "environment": self.environment,
        }
        self._write(f"checks/peers-{self.hardware}.json", json_text(document) + "\n")

    def line(self, peer: Turns, ours: Turns) -> dict[str, Any]:
        """One line of benchmarks/peers: the peer's speeds, ours of the same turns, and where both ran."""
        return {
            "peer": peer.facts.name,
            "model": peer.model,
            "measures": peer.measures,
            "context": peer.context,
            "tokens": peer.tokens,
            "device": peer.facts.device,
            "tok_s": round(median(peer.all), 1),
            "samples": peer.all,
            "turns": len(peer.samples),
            "source": peer.source,
            "more": dict(peer.facts.more),
            "beside": {
                "tok_s": round(median(ours.all), 1),
                "samples": ours.all,
                "git_sha": self.commit,
            },
            "created": self.created,
            "environment": self.environment,
        }

    def report(self, not_run: Mapping[str, str]) -> str:
        """Everybody's figures, and in words what could not be had."""
        rows = [
            [
                t.model, t.measures, str(t.context), t.facts.name, f"{median(t.all):,.1f}",
                f"{min(t.all):,.1f} to {max(t.all):,.1f}", str(len(t.all)),
                str(t.facts.more.get("check", "")),
            ]
            for t in self.turns
        ]  # fmt: skip
        header = ["model", "of", "context", "engine", "tok/s", "lowest to highest", "n", "check"]
        said = [f"{what}: NOT RUN: {why}" for what, why in not_run.items()]
        return "\n".join([table(header, rows) if rows else "nothing was measured", *said])

    def _write(self, name: str, text: str) -> None:
        path = self.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".tmp")
        scratch.write_text(text, encoding="utf-8")
        scratch.replace(path)

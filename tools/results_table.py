"""Writes the tables of results in README.md and docs/performance.md from the files in benchmarks/.

    python -m tools.results_table           rewrite what stands between the markers
    python -m tools.results_table --check   exit code 1 if a page says anything else than the files

A page marks a table with `<!-- results: NAME -->` and `<!-- end of results -->`. A figure of these tables has
no other home than its file.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCHMARKS = ROOT / "benchmarks"
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md")
_MARKED = re.compile(r"(<!-- results: (\w+) -->\n)(.*?)(<!-- end of results -->)", re.DOTALL)


class UnknownTableError(Exception):
    """A page asks for a table that is not declared here."""


@dataclass(frozen=True, slots=True)
class Row:
    """One point of a measurement file: `index` counts the file's points from 0."""

    file: str
    what: str
    index: int = 0

    def point(self) -> Mapping[str, Any]:
        held = json.loads((BENCHMARKS / self.file).read_text("utf-8"))
        points: Sequence[Mapping[str, Any]] = held if isinstance(held, list) else [held]
        return points[self.index]


_LANEFORMER = "Laneformer-2B shape"
HEADLINES = (
    Row("laneformer-2b-h200-x4.json", _LANEFORMER),
    Row("laneformer-2b-plain-h200-x4.json", "same shape as a plain Llama, tensor parallel"),
    Row("laneformer-2b-h200-x2.json", _LANEFORMER),
    Row("laneformer-2b-h200-x1.json", _LANEFORMER),
    Row("laneformer-2b-h200-128.json", _LANEFORMER),
    Row("llama-3.2-1b-h200-peers.json", "Llama-3.2-1B shape"),
    Row("llama-3.2-1b-h200-256.json", "Llama-3.2-1B shape"),
    Row("qwen2.5-coder-1.5b-h200.json", "Qwen2.5-Coder-1.5B shape"),
    Row("llama-3.1-8b-h200-peers.json", "Llama-3.1-8B shape"),
    Row("qwen3-8b-h200.json", "Qwen3-8B shape"),
    Row("smollm2-135m-h200.json", "SmolLM2-135M, real weights"),
    Row("smollm2-135m-cpu.json", "SmolLM2-135M, real weights"),
)
DETAILS = (
    *HEADLINES,
    Row("laneformer-2b-plain-h200-x2.json", "same shape as a plain Llama, tensor parallel"),
    Row("laneformer-2b-plain-h200-x1.json", "same shape as a plain Llama"),
    *(
        Row(f"laneformer-2b-delay{d}-h200-x{n}.json", f"{_LANEFORMER}, delay {d}")
        for n in (4, 2)
        for d in (0, 1)
    ),
    *(Row(f"laneformer-2b-h200-x{n}.json", _LANEFORMER, 1) for n in (4, 2, 1)),
    *(Row("laneformer-2b-h200.json", _LANEFORMER, index) for index in range(3)),
    Row("laneformer-2b-h200-peers.json", _LANEFORMER),
    Row("laneformer-2b-h200-barrier.json", f"{_LANEFORMER}, a barrier after each phase"),
    Row("llama-3.2-1b-h200.json", "Llama-3.2-1B shape"),
    Row("gpt-oss-20b-cpu.json", "GPT-OSS-20B shape, experts in MXFP4"),
)


SAMPLING = (
    Row("laneformer-2b-h200-sampling.json", _LANEFORMER),
    Row("llama-3.2-1b-h200-sampling.json", "Llama-3.2-1B shape"),
    Row("smollm2-135m-h200-sampling.json", "SmolLM2-135M, real weights"),
)


_PROMPTS = BENCHMARKS / "checks" / "prefill-h200.json"
_PROMPT = 2048
_SHAPES = {
    "laneformer-2b": _LANEFORMER,
    "llama-3.2-1b": "Llama-3.2-1B shape",
    "llama-3.1-8b": "Llama-3.1-8B shape",
    "smollm2-135m": "SmolLM2-135M shape",
}


def headline_table() -> str:
    """The README's table: our speed, the fastest others beside it, and what the memory allows."""
    head = (
        "hardware",
        "model",
        "context",
        "tokens",
        "tok/s",
        "95 % interval",
        "memory allows",
        f"a prompt of {_PROMPT:,}, tok/s",
        "others, same GPU",
    )
    rows = []
    for row in HEADLINES:
        p = row.point()
        speed = f"**{_speed(p):,.0f}**"
        rows.append([*_identity(row, p), speed, _interval(p), _ceiling(p), _prompt_speed(p), _others(p)])
    return _markdown(head, rows, right=(2, 3, 4, 6, 7))


def prompt_table() -> str:
    """How fast prompts are read, and how far logits are from FP32, of _PROMPTS."""
    found = json.loads(_PROMPTS.read_text("utf-8"))
    errors = {(one["model"], one["devices"]): one for one in found["errors_beside_fp32_pytorch"]}
    rows = []
    for (model, devices), error in errors.items():
        measured = _prompts_measured(model, devices)
        longest = max(measured)
        rows.append(
            [
                f"{devices} x H200",
                _SHAPES[model],
                *(f"{_fastest(measured[tokens]):,}" for tokens in (128, 512, _PROMPT)),
                f"{_fastest(measured[longest]):,} ({longest:,})" if longest > _PROMPT else "",
                f"{error['logit_rel_err']:.1e} ({error['tokens']:,})",
            ]
        )
    head = (
        "hardware", "model", "128 tokens", "512", f"{_PROMPT:,}", "the longest measured",
        "logits beside FP32",
    )  # fmt: skip
    return _markdown(head, rows, right=(2, 3, 4, 5, 6))


def _prompts_measured(model: str, devices: int) -> dict[int, list[dict[str, Any]]]:
    """What _PROMPTS has of a model on so many GPUs, by tokens of the prompt: a row or several ways."""
    found: dict[int, list[dict[str, Any]]] = {}
    for one in json.loads(_PROMPTS.read_text("utf-8"))["prefill"]:
        if one["model"] == model and one["devices"] == devices:
            found.setdefault(one["tokens"], []).append(one)
    return found


def _fastest(ways: Sequence[Mapping[str, Any]]) -> int:
    return max(int(one["tok_s"]) for one in ways)


def _prompt_speed(point: Mapping[str, Any]) -> str:
    """Empty where prompts were not measured since they go by tiles."""
    if not _hardware(point).endswith("x H200"):
        return ""
    ways = _prompts_measured(point["model"]["name"], len(point["devices"])).get(_PROMPT)
    return f"{_fastest(ways):,}" if ways else ""


def detail_table() -> str:
    """The table of docs/performance.md: every committed point with its commit, date and check."""
    head = (
        "hardware", "model", "context", "tokens", "tok/s", "95 % interval", "n", "of memory",
        "prefill tok/s", "first token ms", "checked against", "commit", "date",
    )  # fmt: skip
    rows = []
    for row in DETAILS:
        p = row.point()
        rows.append(
            [
                *_identity(row, p),
                f"{_speed(p):,.0f}",
                _interval(p),
                str(len(p["decode"]["tok_s"]["samples"])),
                f"{p['mbu']['measured']:.1%}".replace("%", " %"),
                f"{p['prefill']['tok_s']:,.0f}",
                f"{p['ttft_ms']['p50']:.1f}",
                p["verified"]["against"],
                p["git_sha"][:7],
                p["created"][:10],
            ]
        )
    return _markdown(head, rows, right=(2, 3, 4, 6, 7, 8, 9))


def peer_table(measures: str = "decode") -> str:
    """What other engines reached on the same kinds of machine, from benchmarks/peers."""
    head = (
        "device",
        "model",
        "context" if measures == "decode" else "tokens of a prompt",
        "engine",
        "tok/s",
        "lowest to highest",
        "n",
        "ours, same turns",
        "times",
    )
    rows = [
        [
            _device(one["device"]),
            one["model"],
            f"{one['context']:,}" if measures == "prefill" else str(one["context"]),
            one["peer"],
            f"{one['tok_s']:,.0f}",
            f"{min(one['samples']):,.0f} to {max(one['samples']):,.0f}",
            str(len(one["samples"])),
            *_beside(one),
        ]
        for one in sorted(_peers(measures), key=_place_of_peer)
    ]
    return _markdown(head, rows, right=(2, 4, 6, 7, 8))


def _place_of_peer(one: Mapping[str, Any]) -> tuple[Any, ...]:
    behind = one["context"] if one.get("measures") == "prefill" else 0
    return one["device"], one["model"], behind, -one["tok_s"]


def _beside(peer: Mapping[str, Any]) -> list[str]:
    """Ours of the same turns, and how many times the peer it is; empty where they did not take turns."""
    if "beside" not in peer:
        return ["", ""]
    ours = peer["beside"]["tok_s"]
    return [f"{ours:,.0f}", f"{ours / peer['tok_s']:.2f}"]


def sampling_table() -> str:
    """Greedy and the playground's default of each model, points of one run."""
    head = (
        "hardware", "model", "context", "tokens", "greedy tok/s", "playground's default", "of greedy",
        "n", "commit", "date",
    )  # fmt: skip
    rows = []
    for row in SAMPLING:
        greedy, default = row.point(), replace(row, index=row.index + 1).point()
        rows.append(
            [
                *_identity(row, greedy),
                f"{_speed(greedy):,.0f}",
                f"{_speed(default):,.0f}",
                f"{_speed(default) / _speed(greedy):.3f}",
                str(len(greedy["decode"]["tok_s"]["samples"])),
                greedy["git_sha"][:7],
                greedy["created"][:10],
            ]
        )
    return _markdown(head, rows, right=(2, 3, 4, 5, 6, 7))


def product_table() -> str:
    """What a websocket client gets of the whole product, from benchmarks/checks/product-h200.json."""
    found = json.loads((BENCHMARKS / "checks" / "product-h200.json").read_text("utf-8"))
    rows = [
        [f"{what}, tok/s at the client ({speed['tokens']:,} tokens)", *_spread(speed["client_tok_s"], ",.0f")]
        for what, speed in found["speed"].items()
    ]
    for one in found["first_token"]:
        prompt = f"first token of {one['prompt_tokens']:,} tokens, ms"
        rows.append([prompt, *_spread(one["cold_ms"], ".1f")])
        if one["cached_tokens"]:
            rows.append(
                [f"{prompt}, of which {one['cached_tokens']:,} are kept", *_spread(one["warm_ms"], ".1f")]
            )
        if "turn_ms" in one:
            new = f"first token of {one['turn_tokens']:,} more after those, ms"
            rows.append([new, *_spread(one["turn_ms"], ".1f")])
    rows.append(
        ["`/v1/completions` over prefill and decode, ms", *_spread(found["http"]["overhead_ms"], ".1f")]
    )
    recovery = found["recovery"]
    rows.append(
        ["silence after SIGKILL, a second worker there, s", f"{recovery['second_worker_s']:.2f}", "", "1"]
    )
    once = [f"{recovery['restart_s']:.2f}", "", "1"]  # as older files have it
    restart = _spread(recovery["restarts_s"], ".2f") if "restarts_s" in recovery else once
    rows.append(["silence after SIGKILL, until the restart, s", *restart])
    table = _markdown(("what", "median", "lowest to highest", "n"), rows, right=(1, 3))
    return f"{table}\nCommit {found['environment']['git']['sha'][:7]}, {found['when'][:10]}.\n"


def _spread(found: Mapping[str, Any], form: str) -> list[str]:
    return [f"{found['median']:{form}}", f"{found['min']:{form}} to {found['max']:{form}}", str(found["n"])]


TABLES: Mapping[str, Callable[[], str]] = {
    "headlines": headline_table,
    "details": detail_table,
    "sampling": sampling_table,
    "peers": peer_table,
    "product": product_table,
    "prompts": prompt_table,
    "prompts_beside": partial(peer_table, "prefill"),
}


def rewritten(text: str) -> str:
    """A page's text with its tables made anew. Raises UnknownTableError."""

    def table(found: re.Match[str]) -> str:
        start, name, _, end = found.groups()
        if name not in TABLES:
            raise UnknownTableError(
                f"there is no table of results named {name}: known are {', '.join(TABLES)}"
            )
        return f"{start}{TABLES[name]()}{end}"

    return _MARKED.sub(table, text)


def _identity(row: Row, point: Mapping[str, Any]) -> list[str]:
    settings = point["settings"]
    return [_hardware(point), row.what, f"{settings['context']:,}", f"{settings['tokens']:,}"]


def _hardware(point: Mapping[str, Any]) -> str:
    devices = point["devices"]
    return (
        f"{len(devices)} x {_device(devices[0]['name'])}"
        if point["backend"] == "cuda"
        else devices[0]["name"]
    )


def _device(name: str) -> str:
    return name.removeprefix("NVIDIA ")


def _speed(point: Mapping[str, Any]) -> float:
    return float(point["decode"]["tok_s"]["median"])


def _interval(point: Mapping[str, Any]) -> str:
    low, high = point["decode"]["tok_s"]["ci95"]
    return f"{low:,.0f} to {high:,.0f}"


def _ceiling(point: Mapping[str, Any]) -> str:
    return f"{_speed(point) / point['mbu']['measured']:,.0f}"


def _others(point: Mapping[str, Any]) -> str:
    """The fastest figure of each engine for the same model and context on the same single device."""
    if len(point["devices"]) > 1:
        return ""
    best: dict[str, tuple[float, str]] = {}
    for one in _peers():
        same = (one["model"], one["context"], one["device"])
        if same != (point["model"]["name"], point["settings"]["context"], point["devices"][0]["name"]):
            continue
        engine = one["peer"].split(",")[0].split(" ")[0] + (" compile" if "compile" in one["peer"] else "")
        if one["tok_s"] > best.get(engine, (0.0, ""))[0]:
            best[engine] = (one["tok_s"], engine)
    ranked = sorted(best.values(), reverse=True)
    return ", ".join(f"{engine} {speed:,.0f}" for speed, engine in ranked)


def _peers(measures: str = "decode") -> list[Mapping[str, Any]]:
    """Those measured at decode, which a line need not say, or at prompts."""
    files = sorted((BENCHMARKS / "peers").glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text("utf-8").splitlines() if line.strip()]
    return [one for one in map(json.loads, lines) if one.get("measures", "decode") == measures]


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int]) -> str:
    rule = ["---:" if column in right else "---" for column in range(len(head))]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page differs")
    check = parser.parse_args().check
    stale = []
    for page in PAGES:
        text = page.read_text("utf-8")
        fresh = rewritten(text)
        if fresh == text:
            continue
        stale.append(page.name)
        if not check:
            page.write_text(fresh, "utf-8")
    if check and stale:
        print(f"{' and '.join(stale)} do not say what benchmarks/ holds: run make results", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

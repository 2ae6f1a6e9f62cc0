"""What a slow link costs with and without delay, on two virtual devices: `make link-latency`.

    python -m tools.plot_link_latency [--svg FILE] [--out FILE]

A model with lanes runs on two virtual devices of one thread each, and the link between them is made slower
step by step. Without delay a token waits for the link twice a layer. With a delay of d layers the sums are
wanted d layers after they were sent, so that nothing waits until the link takes longer than d layers. In
every case the devices agree once on the sampled token, which costs one latency a token.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from engine.backends import open_backend
from engine.backends.base import Job
from engine.backends.running import complete
from engine.errors import EngineError
from engine.measuring import environment
from engine.measuring.bandwidth import usable_cores
from engine.measuring.statistics import median
from engine.models.config import HeadKind, Lanes, ModelConfig
from engine.models.weights import RandomWeights, Weights
from tools.setup import ROOT

DELAYS = (0, 1, 2)
LATENCIES_US = (0, 25, 50, 100, 150, 200, 300, 400, 600, 800)
REPEATS, TOKENS, CONTEXT = 5, 48, 16
CONFIG = ModelConfig(
    "eight-lanes",
    hidden=768,
    layers=12,
    heads=16,
    kv_heads=8,
    head_dim=48,
    ffn=3072,
    vocab=2048,
    context=256,
    lanes=Lanes(8, 2, early_comm=False, head=HeadKind.VOCAB_PARALLEL),
)


@dataclass(frozen=True)
class Loaded:
    config: ModelConfig
    weights: Weights


def token_us(delay: int, latency_us: float) -> list[float]:
    """Microseconds a decode token, one figure a repeat."""
    config = replace(CONFIG, lanes=replace(CONFIG.lanes, delay=delay))
    backend = open_backend(
        "cpu",
        Loaded(config, RandomWeights(config)),
        devices=2,
        options={"threads": 1, "link_latency_us": latency_us},
    )
    prompt = tuple(int(t) for t in np.random.default_rng(0).integers(0, config.vocab, CONTEXT))
    times = []
    try:
        for _ in range(REPEATS + 1):
            tokens = complete(backend, Job(prompt, TOKENS))
            times.append((tokens[-1].t_ns - tokens[0].t_ns) / (len(tokens) - 1) / 1e3)
    finally:
        backend.close()
    return times[1:]


def measure() -> dict[int, list[list[float]]]:
    """By delay, the samples at each latency. The delays take turns, so that a busy moment falls on all."""
    found: dict[int, list[list[float]]] = {delay: [] for delay in DELAYS}
    for latency in LATENCIES_US:
        for delay in DELAYS:
            found[delay].append(token_us(delay, latency))
        medians = "  ".join(f"delay {d}: {median(found[d][-1]):7.0f} us" for d in DELAYS)
        print(f"link {latency:>4} us   {medians}", flush=True)
    return found


WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 720, 400, 70, 50, 30, 110
COLOURS = {0: "#c2410c", 1: "#7c3aed", 2: "#0f766e"}


def draw(found: dict[int, list[list[float]]]) -> str:
    """An SVG: milliseconds a token over the link's latency, medians with the range of the repeats."""
    top = max(max(samples) for rows in found.values() for samples in rows) / 1e3 * 1.05
    right = LATENCIES_US[-1]

    def x(latency: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * latency / right

    def y(ms: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * ms / top

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif"'
        ' font-size="13" role="img" aria-label="Time of a token over the latency of the link, by delay">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="18" fill="#1f2937">Time of a token on 2 virtual devices, 12 layers</text>',
    ]
    step = 5 if top > 12 else 2 if top > 5 else 1
    for ms in range(0, int(top) + 1, step):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(ms)}" y2="{y(ms)}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(ms) + 4}" text-anchor="end" fill="#4b5563">{ms} ms</text>')
    for latency in LATENCIES_US:
        if latency % 200 == 0:
            parts.append(
                f'<text x="{x(latency)}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle" fill="#4b5563">'
                f"{latency}</text>"
            )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle" fill="#4b5563">link latency, us</text>'
    )
    for delay, rows in found.items():
        colour = COLOURS[delay]
        points = [(x(at), y(median(samples) / 1e3)) for at, samples in zip(LATENCIES_US, rows, strict=True)]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
            + " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
            + '"/>'
        )
        for (px, _), samples in zip(points, rows, strict=True):
            parts.append(
                f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{y(min(samples) / 1e3):.1f}"'
                f' y2="{y(max(samples) / 1e3):.1f}" stroke="{colour}" stroke-width="5" opacity="0.35"/>'
            )
        px, py = points[-1]
        parts.append(f'<text x="{px + 10:.1f}" y="{py + 4:.1f}" fill="{colour}">delay {delay}</text>')
    return "\n".join([*parts, "</svg>", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description="What a slow link costs with and without delay.")
    parser.add_argument("--svg", type=Path, default=ROOT / "docs" / "images" / "link-latency.svg")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "checks" / "link-latency.json")
    arguments = parser.parse_args()
    if usable_cores() < 2:
        print("plot_link_latency: this needs two cores, one for each virtual device", file=sys.stderr)
        return 2
    try:
        found = measure()
    except EngineError as error:
        print(f"plot_link_latency: {error}", file=sys.stderr)
        return 2
    for path in (arguments.svg, arguments.out):
        path.parent.mkdir(parents=True, exist_ok=True)
    arguments.svg.write_text(draw(found), encoding="utf-8")
    result = {
        "check": "time of a token over the latency of the link, two virtual devices",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "latencies_us": LATENCIES_US,
        "token_us": {str(delay): rows for delay, rows in found.items()},
        "environment": environment.capture(),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"drawn to {arguments.svg}, samples in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a user of the whole product gets, on this machine: `make bench-product`.

    python -m tools.bench_product [--model NAME] [--backend NAME] [--devices N] [--out FILE]

Starts everything that `make run` starts, with a home of its own, and drives it over loopback as a page
(websocket) and as an HTTP client do. Greedy and sampled texts must be those of `python -m engine generate`;
else it is an error. All figures are medians of --repeats, with the lowest and highest:

    tok_s         tokens after the first frame over the time since it, at the websocket client
    first token   from the start frame to the first tokens, at the same client: a new prompt (cold), and the
                  same prompt with another end (warm), which goes on from what is kept; of a long prompt also
                  with some 20 tokens more (turn), as the next question of a chat
    overhead      of /v1/completions over its own prefill and decode time
    recovery      the longest silence after SIGKILL in mid-stream: until the supervisor has started a worker
                  again that had been steady, and with a second worker there
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from engine import settings
from engine.errors import EngineError
from engine.serving.client import AsyncClient
from tools.bench_product.answer import Answer, first_token_parts, new_tokens, spread
from tools.bench_product.clients import Http, Page
from tools.bench_product.product import Product, ProductError, Setup, generate
from tools.bench_product.prompts import LINES, NEW_TOKENS, PROMPT, TURN, prompt_of
from tools.bench_product.report import report

SAMPLINGS: dict[str, dict[str, float]] = {
    "greedy": {"temperature": 0.0, "seed": 5},
    "defaults": {"temperature": 0.2, "top_p": 0.95, "seed": 5},
}
_PAUSE_S = 0.15
"""Before each first token that is timed: the record of the answer before it has been written by then."""
_MOST_RESTARTS = 3
"""Each is preceded by some ten seconds in which the worker is well."""
_KILL_AFTER = 20
"""Tokens that the client has when the worker is killed."""


async def measure(product: Product, args: argparse.Namespace) -> dict[str, Any]:
    with ThreadPoolExecutor() as pool:
        asked = {
            name: pool.submit(generate, product.setup, PROMPT, _flags(sampling, args.tokens))
            for name, sampling in SAMPLINGS.items()
        }  # while the product starts
        return await _measure_running(product, asked, args)


async def _measure_running(
    product: Product, asked: Mapping[str, Future[str]], args: argparse.Namespace
) -> dict[str, Any]:
    with product.running():
        texts = {name: text.result() for name, text in asked.items()}  # nothing else runs from here on
        page = await Page.open(product.port)
        await page.ask(PROMPT, max_tokens=8)  # warm-up: the first request of a process pays for imports
        results: dict[str, Any] = {"speed": await _speeds(page, texts, args)}
        results["first_token"] = [await _first_tokens(page, lines, args.repeats) for lines in args.lines]
        results["http"] = await asyncio.to_thread(_overhead, product, args)
        results["recovery"] = await _recovery(product, page, args)
        async with AsyncClient(product.redis_url) as client:
            results["environment"] = await client.environment(product.embedded)
        page.close()
    return results


def _flags(sampling: dict[str, float], tokens: int) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in sampling.items()]
    return [*flags, f"--max-tokens={tokens}"]


async def _speeds(page: Page, texts: dict[str, str], args: argparse.Namespace) -> dict[str, Any]:
    found = {}
    for name, sampling in SAMPLINGS.items():
        answers = [
            await page.ask(PROMPT, max_tokens=args.tokens, sampling=sampling) for _ in range(args.repeats)
        ]
        for answer in answers:
            if answer.text != texts[name]:
                raise ProductError(f"the {name} text differs from that of `generate`: {answer.text[:80]!r}")
        found[name] = {
            "client_tok_s": spread([answer.tok_s for answer in answers]),
            "decode_tok_s": spread([answer.timings["decode_tok_s"] for answer in answers]),
            "tokens": answers[0].tokens,
        }
    return found


async def _first_tokens(page: Page, lines: int, repeats: int) -> dict[str, Any]:
    """First tokens of a prompt of so many lines, cold, warm and a turn later; 0 is the short prompt."""
    cold, warm, turn = [], [], []
    for number in range(repeats):
        await asyncio.sleep(_PAUSE_S)
        cold.append(await page.ask(prompt_of(number, lines, "a"), max_tokens=NEW_TOKENS))
        await asyncio.sleep(_PAUSE_S)
        warm.append(await page.ask(prompt_of(number, lines, "b"), max_tokens=NEW_TOKENS))
        if lines:
            await asyncio.sleep(_PAUSE_S)
            turn.append(await page.ask(prompt_of(number, lines, "b" + TURN), max_tokens=NEW_TOKENS))
    found = {
        "prompt_tokens": int(cold[0].timings["prompt_tokens"]),
        "cached_tokens": int(median([answer.timings["cached_tokens"] for answer in warm])),
        "cold_ms": spread([answer.first_token_ms for answer in cold]),
        "warm_ms": spread([answer.first_token_ms for answer in warm]),
        "cold_parts_ms": first_token_parts(cold),
        "warm_parts_ms": first_token_parts(warm),
    }
    if turn:
        found["turn_tokens"] = new_tokens(turn)
        found["turn_ms"] = spread([answer.first_token_ms for answer in turn])
        found["turn_parts_ms"] = first_token_parts(turn)
    return found


def _overhead(product: Product, args: argparse.Namespace) -> dict[str, Any]:
    """Of /v1/completions over the engine's own time."""
    http = Http(product.port)
    model = product.workers()[0].model
    over, whole = [], []
    for number in range(args.repeats + 1):
        time.sleep(_PAUSE_S)
        answer, took = http.complete(
            model=model, prompt=f"{PROMPT}  # {number}", max_tokens=128, temperature=0
        )
        times = answer["timings"]
        if number:  # the first one pays for imports
            whole.append(took * 1e3)
            over.append(took * 1e3 - times["prefill_ms"] - times["decode_ms"])
    http.close()
    return {"overhead_ms": spread(over), "whole_ms": spread(whole)}


async def _recovery(product: Product, page: Page, args: argparse.Namespace) -> dict[str, Any]:
    sampling = SAMPLINGS["defaults"]
    whole = await page.ask(PROMPT, max_tokens=args.long_tokens, sampling=sampling)
    found: dict[str, Any] = {}
    restarts = []
    for _ in range(min(args.repeats, _MOST_RESTARTS)):
        product.wait_until_steady()
        restarts.append(await _silence(product, page, whole, sampling))
        product.wait_until_idle(product.embedded)
    found["restarts_s"] = spread(restarts)
    found["restart_s"] = found["restarts_s"]["median"]
    with product.second_worker():
        found["second_worker_s"] = await _silence(product, page, whole, sampling)
        product.wait_until_idle(product.embedded)
    return found


async def _silence(product: Product, page: Page, whole: Answer, sampling: dict[str, float]) -> float:
    """How long nothing comes after the worker of a generation is killed; its text must stay the same."""
    killed: list[str] = []

    def kill(answer: Answer) -> None:
        if answer.tokens >= _KILL_AFTER and not killed:
            killed.append(answer.workers[-1])
            product.kill_worker(answer.workers[-1])

    answer = await page.ask(PROMPT, kill, max_tokens=whole.tokens, sampling=sampling)
    if answer.text != whole.text:
        raise ProductError("after a kill the text differs from that of an undisturbed run")
    if len(answer.workers) < 2:
        raise ProductError(f"the generation ended before {killed} was killed: raise --long-tokens")
    return round(answer.silence_s, 3)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench_product", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--model", default=settings.default_model())
    parser.add_argument("--backend", default=settings.default_backend())
    parser.add_argument("--devices", type=int, default=settings.default_devices())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=256, help="of a speed (default: %(default)s)")
    parser.add_argument("--long-tokens", type=int, default=1000, help="of a killed generation")
    parser.add_argument(
        "--lines", type=int, nargs="+", default=list(LINES),
        help="lengths of prompts, in lines of some 20 tokens; 0 is a short one",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="the file for the results (default: none)")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    with tempfile.TemporaryDirectory(prefix="monolane-product-") as folder:
        product = Product(Path(folder), Setup(args.model, args.backend, args.devices))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started is ended then, too
        try:
            results = asyncio.run(measure(product, args))
        except EngineError as error:
            print(f"bench-product: {error}", file=sys.stderr)
            return 1
    results["when"] = datetime.now(UTC).isoformat(timespec="seconds")
    print(report(results))
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

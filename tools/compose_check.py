"""Builds the production stack, starts it beside whatever runs, and drives it: `make compose-check`.

Needs a Docker Engine with compose. Uses docker-compose.yml with the CPU override under a project name and a
subnet of its own, and removes its containers and volumes at the end. Prints one line a check; exits with 1 if
one failed.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "monolane-check"
PORT = os.environ.get("PORT", "8199")
PORT_2 = os.environ.get("PORT_2", "8198")
COMPOSE = [
    "docker",
    "compose",
    "--project-name",
    PROJECT,
    "-f",
    "docker-compose.yml",
    "-f",
    "docker-compose.cpu.yml",
]
SUBNET = "172.30.118.0/24"
START_S = 300.0
REFUSED_S = 5.0
SERVICES = ("web", "web-2", "celery", "beat", "worker", "redis", "postgres")
GENERATE = {"model": "smollm2-135m", "prompt": "def fib(n):", "max_tokens": 32, "temperature": 0}


class CheckError(Exception):
    """What did not hold."""


class Stack:
    """The containers of one check, with secrets of their own."""

    def __init__(self) -> None:
        self._environment = {
            **os.environ,
            "SECRET_KEY": secrets.token_urlsafe(64),
            "POSTGRES_PASSWORD": secrets.token_hex(16),
            "REDIS_PASSWORD": secrets.token_hex(16),
            "ALLOWED_HOSTS": "localhost",
            "HTTPS": "0",
            "PORT": PORT,
            "PORT_2": PORT_2,
            "SUBNET": SUBNET,
            "MONITORS": SUBNET,
            "MONOLANE_GIT_SHA": _run(["git", "rev-parse", "HEAD"]).strip(),
        }
        self.key = ""

    def compose(self, *arguments: str) -> str:
        return _run([*COMPOSE, *arguments], self._environment)

    def manage(self, *arguments: str) -> str:
        return self.compose("exec", "-T", "web", "python", "manage.py", *arguments)

    def get(self, path: str, body: object = None, port: str = PORT) -> tuple[int, str]:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://localhost:{port}{path}", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError as error:
            return 0, str(error)

    def wait_until_ready(self, seconds: float = START_S) -> None:
        deadline = time.monotonic() + seconds
        while (found := self.get("/readyz"))[0] != 200:
            if time.monotonic() > deadline:
                raise CheckError(f"not ready after {seconds:.0f} s: {found}")
            time.sleep(1)


def start(stack: Stack) -> None:
    stack.compose("build")
    stack.compose("up", "-d")
    stack.wait_until_ready()


def open_page(stack: Stack) -> None:
    status, page = stack.get("/")
    _require(status == 200 and "Monolane" in page, f"/ answered {status}")


def open_socket(stack: Stack) -> None:
    code = (
        "import socket; s = socket.create_connection(('localhost', 8000));"
        "s.sendall(b'GET /ws/playground/ HTTP/1.1\\r\\nHost: localhost\\r\\nOrigin: http://localhost\\r\\n"
        "Upgrade: websocket\\r\\nConnection: Upgrade\\r\\nSec-WebSocket-Version: 13\\r\\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\\r\\n\\r\\n'); print(s.recv(100))"
    )
    said = stack.compose("exec", "-T", "web", "python", "-c", code)
    _require(" 101 " in said, f"the socket answered {said[:100]}")


def use_api(stack: Stack) -> None:
    made = stack.manage("api_key", "make", "check")
    stack.key = next(word for word in made.split() if word.startswith("ml-"))
    status, answer = stack.get("/v1/completions", GENERATE)
    _require(status == 200, f"/v1/completions answered {status}: {answer[:200]}")


def run_sweep(stack: Stack) -> None:
    stack.manage("sweep", "cpu-quick")


def restart_each(stack: Stack) -> None:
    for service in SERVICES:
        stack.compose("restart", service)
        stack.wait_until_ready(120)
        status, answer = stack.get("/v1/completions", GENERATE)
        _require(status == 200, f"after a restart of {service}: {status} {answer[:200]}")


def update(stack: Stack) -> None:
    """As docs/operations.md has it, while somebody asks each 0.1 s, at the other port where one refuses."""
    refused, over = 0.0, threading.Event()

    def ask() -> None:
        nonlocal refused
        at = time.monotonic()
        while not over.wait(0.1):
            answers = any(stack.get("/healthz", port=port)[0] == 200 for port in (PORT, PORT_2))
            refused, at = refused + (0.0 if answers else time.monotonic() - at), time.monotonic()

    visitor = threading.Thread(target=ask)
    visitor.start()
    try:
        for service in ("web", "web-2"):
            stack.compose("up", "-d", "--no-deps", "--force-recreate", "--wait", service)
    finally:
        over.set()
        visitor.join()
    print(f"    requests refused for {refused:.1f} s", flush=True)
    _require(refused < REFUSED_S, f"requests were refused for {refused:.1f} s")


def scale_workers(stack: Stack) -> None:
    stack.compose("up", "-d", "--no-recreate", "--scale", "worker=2", "worker")
    deadline = time.monotonic() + 120
    while stack.get("/readyz")[1].count("worker-") < 2:
        _require(time.monotonic() < deadline, "a second worker did not join within 120 s")
        time.sleep(1)


def stop_cleanly(stack: Stack) -> None:
    began = time.monotonic()
    stack.compose("stop")
    _require(time.monotonic() - began < 60, "the stack took over a minute to stop")
    stores = json.loads("[" + ",".join(stack.compose("ps", "-a", "--format", "json").splitlines()) + "]")
    codes = {
        entry["Service"]: entry["ExitCode"] for entry in stores if entry["Service"] in ("redis", "postgres")
    }
    _require(codes == {"redis": 0, "postgres": 0}, f"the stores ended with {codes}")
    said = stack.compose("logs", "--tail", "20", "postgres")
    _require("database system is shut down" in said, "PostgreSQL did not shut down")


CHECKS: tuple[Callable[[Stack], None], ...] = (
    start, open_page, open_socket, use_api, run_sweep, restart_each, update, scale_workers, stop_cleanly,
)  # fmt: skip


def main() -> int:
    if shutil.which("docker") is None or _code(["docker", "compose", "version"]) or _code(["docker", "info"]):
        print("compose-check: no Docker Engine with compose answers here", file=sys.stderr)
        return 2
    stack = Stack()
    try:
        for check in CHECKS:
            began = time.monotonic()
            check(stack)
            print(f"  {check.__name__:<16} {time.monotonic() - began:6.1f} s", flush=True)
    except CheckError as error:
        print(f"  {check.__name__:<16} failed: {error}", file=sys.stderr)
        return 1
    finally:
        stack.compose("down", "--volumes", "--timeout", "10")
    return 0


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise CheckError(otherwise)


def _code(command: list[str]) -> int:
    return subprocess.run(command, capture_output=True, check=False).returncode


def _run(command: list[str], environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckError(f"`{' '.join(command[-4:])}` ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())

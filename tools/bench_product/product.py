"""The whole product for one measurement: the supervisor with all its services, and a home of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]

from engine import settings
from engine.errors import EngineError
from engine.serving.client import Client
from engine.serving.messages import Heartbeat
from tools.ports import free_port
from tools.supervisor.child import STEADY_S

ROOT = Path(__file__).resolve().parents[2]
START_S = 180.0
STOP_S = 20.0
LIMITS_OFF = {"LIMIT_ADDRESS": "off", "LIMIT_SESSION": "off", "API_KEY_REQUIRED": "0"}


class ProductError(EngineError):
    """The product did not start, or gave something other than what it must."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What the workers run."""

    model: str
    backend: str
    devices: int

    @property
    def flags(self) -> list[str]:
        return ["--model", self.model, "--backend", self.backend, "--devices", str(self.devices)]


class Product:
    """Everything that `make run` starts. `embedded` is the name of the supervisor's own worker."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.port = free_port()
        self.setup = setup
        self.embedded = f"{socket.gethostname()}-embedded"
        self.redis_url = f"unix://{folder / 'redis.sock'}"
        self._folder = folder
        self._environment = settings.child_environment(
            MONOLANE_HOME=str(folder),
            MONOLANE_MODEL=setup.model,
            MONOLANE_BACKEND=setup.backend,
            MONOLANE_DEVICES=str(setup.devices),
            PORT=str(self.port),
            REDIS_URL="",
            DATABASE_URL="",
            MONOLANE_WITHOUT_RESULTS="1",  # seconds of work, and nobody looks at the dashboard
            **LIMITS_OFF,
        )
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # as make does: else each start compiles anew
        self._ready_at = 0.0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for made in ("models", "kernels"):  # weights and compiled kernels, which take minutes to make
            if (settings.home() / made).is_dir():
                (folder / made).symlink_to(settings.home() / made)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises ProductError if it ends before it is ready, or is not ready after START_S."""
        with self._process([sys.executable, "-m", "tools.supervisor"], "supervisor") as supervisor:
            self._supervisor = psutil.Process(supervisor.pid)
            self._wait(lambda: self._idle(self.embedded), "the worker", "supervisor")
            self._wait(self._page_answers, "the page", "supervisor")
            self._ready_at = time.monotonic()
            yield

    @contextmanager
    def second_worker(self, name: str = "second") -> Iterator[None]:
        """One more worker beside the embedded one, ready."""
        command = [sys.executable, "-m", "engine", "worker", *self.setup.flags]
        with self._process([*command, "--redis", self.redis_url, "--name", name], name):
            self._wait(lambda: self._idle(name), f"the worker {name}", name)
            yield

    def kill_worker(self, name: str) -> None:
        """SIGKILL, as the kernel does when memory runs out."""
        found = [process for process in psutil.Process().children(recursive=True) if _runs(process, name)]
        if len(found) != 1:
            raise ProductError(f"{len(found)} processes run the worker {name}; there must be one")
        found[0].send_signal(signal.SIGKILL)

    def workers(self) -> list[Heartbeat]:
        with Client(self.redis_url) as client:
            return client.workers()

    def wait_until_idle(self, name: str) -> None:
        self._wait(lambda: self._idle(name), f"the worker {name}", "supervisor")
        if name == self.embedded:
            self._ready_at = time.monotonic()

    def wait_until_steady(self) -> None:
        """Until the supervisor would start the embedded worker again at once; sooner it pauses first."""
        time.sleep(max(0.0, self._ready_at + STEADY_S + 1 - time.monotonic()))

    def _idle(self, name: str) -> bool:
        try:
            return any(worker.name == name and worker.state == "idle" for worker in self.workers())
        except EngineError:
            return False

    def _page_answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def _wait(self, condition: Callable[[], bool], what: str, log: str) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            ended = self._processes[log].poll() is not None
            if ended or time.monotonic() > deadline:
                tail = (self._folder / f"{log}.log").read_text(errors="replace")[-1000:]
                why = (
                    f"is not there, the {log} has ended" if ended else f"was not ready after {START_S:.0f} s"
                )
                raise ProductError(f"{what} {why}: {tail}")
            time.sleep(0.05)

    @contextmanager
    def _process(self, command: list[str], name: str) -> Iterator[subprocess.Popen[bytes]]:
        with ExitStack() as stack:
            out = stack.enter_context((self._folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                command, cwd=ROOT, env=self._environment, stdout=out, stderr=subprocess.STDOUT
            )
            self._processes[name] = process
            try:
                yield process
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


def generate(setup: Setup, prompt: str, flags: list[str]) -> str:
    """The text that the command line gives for a prompt. Raises ProductError."""
    command = [sys.executable, "-m", "engine", "generate", "--json", *setup.flags, "--prompt", prompt, *flags]
    done = subprocess.run(
        command, cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, timeout=300
    )
    if done.returncode:
        raise ProductError(f"`generate` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return str(json.loads(done.stdout)["text"])


def _runs(process: psutil.Process, name: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "worker" in words and "--name" in words and words[words.index("--name") + 1] == name

"""Starts everything, keeps it running, and stops it all on one Ctrl-C.

Reads PORT, MONOLANE_HOME, REDIS_URL and what the services read themselves (docs/operations.md).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from engine import settings
from tools.setup import in_words
from tools.supervisor.child import Child, Service
from tools.supervisor.errors import Stopped, SupervisorError
from tools.supervisor.guardian import Guardian
from tools.supervisor.preflight import Lock, check_home, check_port, check_redis, port_from
from tools.supervisor.prepare import prepare
from tools.supervisor.services import READY, Plan, redis_answers, redis_service, services

ROOT = Path(__file__).resolve().parents[2]
LOOK_EVERY_S = 0.1
REDIS_START_S = 10.0
STOP_S = 7.0
"""What the services get to end by themselves; with Redis after them, all is over within 10 s."""


@contextmanager
def _wake_for_children() -> Iterator[Callable[[float], None]]:
    """A sleep that ends as a child does: nobody waits for the next look at it. For the main thread."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)

    def wait(seconds: float) -> None:
        if select.select([reader], [], [], seconds)[0]:
            os.read(reader, 4096)

    before = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield wait
    finally:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, before)
        os.close(reader)
        os.close(writer)


class Supervisor:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._guardian = Guardian()
        self._children: list[Child] = []
        self._said: dict[str, str] = {}
        self._signals = 0
        self._announced = False

    def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        try:
            self._start_all()
            with _wake_for_children() as wait:
                while not self._signals:
                    self._look()
                    wait(LOOK_EVERY_S)
        finally:
            self._stop_all()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _start_all(self) -> None:
        if self._plan.external_redis is None:
            self._start(redis_service(self._plan))
            self._wait_for_redis()
        try:
            done = prepare(ROOT, self._plan.home, self._plan.environment, lambda: self._signals > 0)
        except Stopped:
            return
        for step in done:
            say("setup", step)
        for service in services(self._plan):
            if not self._signals:
                self._start(service)

    def _start(self, service: Service) -> None:
        child = Child(service, self._plan.home / "logs", ROOT, self._guardian)
        child.start()
        self._children.append(child)

    def _wait_for_redis(self) -> None:
        deadline = time.monotonic() + REDIS_START_S
        child = self._children[0]
        while not redis_answers(self._plan.redis_url):
            if not child.running or time.monotonic() > deadline:
                raise SupervisorError(f"the embedded Redis did not start: {child.last_line()} ({child.log})")
            time.sleep(0.02)

    def _look(self) -> None:
        for child in self._children:
            name = child.service.name
            trouble = child.tend()
            if trouble:
                self._said[name] = ""
                say(name, trouble)
            elif child.running and not self._said.get(name, "").startswith(READY):
                self._tell_state(child)
        if not self._announced and all(self._said.get(child.service.name) for child in self._children):
            self._announced = True
            logs = self._plan.home / "logs"
            print(f"\n  Monolane runs at {self._plan.url}  (Ctrl-C stops it; logs: {logs})", flush=True)
            print(
                f"  Sweeps are run from {self._plan.url}admin/  (`make admin` makes an administrator)\n",
                flush=True,
            )

    def _tell_state(self, child: Child) -> None:
        name, state = child.service.name, child.state
        if state.startswith(READY):
            child.note_ready()
        if state and state != self._said.get(name):
            self._said[name] = state
            say(name, state)

    def _stop_all(self) -> None:
        started = time.monotonic()
        if self._signals and self._children:
            print("\n  stopping ...", flush=True)
        # Redis last: the others hand back what they have in hand.
        for group in (self._children[1:], self._children[:1]) if self._has_redis() else (self._children,):
            for child in group:
                child.ask_to_stop()
            self._wait_for_end(group)
            for child in group:
                child.kill()
        self._guardian.close()
        if self._children:
            print(f"  all stopped in {time.monotonic() - started:.1f} s", flush=True)

    def _has_redis(self) -> bool:
        return bool(self._children) and self._children[0].service.name == "redis"

    def _wait_for_end(self, group: list[Child]) -> None:
        """A second signal ends the patience."""
        deadline = time.monotonic() + STOP_S
        while any(child.running for child in group) and time.monotonic() < deadline and self._signals < 2:
            time.sleep(0.02)


def say(name: str, text: str) -> None:
    print(f"  {name:<8} {text}", flush=True)


def supervise() -> None:
    os.umask(0o077)  # what the services write under MONOLANE_HOME is for its owner alone
    home = settings.home()
    plan = Plan(
        home=home,
        port=port_from(os.environ.get("PORT") or "8000"),
        external_redis=os.environ.get("REDIS_URL") or None,
        worker_name=f"{socket.gethostname()}-embedded",
    )
    check_home(home)
    lock = Lock(home)
    lock.take(plan.url)
    try:
        check_port(plan.port)
        check_redis(plan.external_redis, home)
        Supervisor(plan).run()
    finally:
        lock.release()


def main() -> int:
    try:
        supervise()
    except (SupervisorError, OSError) as error:
        print(f"monolane: {in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

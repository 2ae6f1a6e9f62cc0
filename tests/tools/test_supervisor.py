"""The supervisor, with every service real and the engine paced."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import psutil
import pytest
import redis

from engine.serving.messages import Heartbeat, worker_key
from tests.waiting import wait_until
from tools.ports import free_port
from tools.supervisor import preflight
from tools.supervisor.child import Child, Service
from tools.supervisor.errors import Stopped, SupervisorError
from tools.supervisor.guardian import Guardian
from tools.supervisor.prepare import prepare
from tools.supervisor.services import Plan, worker_state

ROOT = Path(__file__).resolve().parents[2]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
time.sleep(60)
"""
NAMES = ("redis", "web", "worker", "celery", "beat")


class Running:
    """A supervisor as a process, and what it has printed."""

    def __init__(self, home: Path, port: int, **environment: str) -> None:
        self.port = port
        self.home = home
        self._out = (home / "out.txt").open("w+")
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tools.supervisor"],
            cwd=ROOT,
            env={**_environment(home, port), **environment},
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def output(self) -> str:
        return (self.home / "out.txt").read_text()

    def wait_for(self, condition: Callable[[], bool], seconds: float = 60.0) -> float:
        """Seconds since the start when `condition` came true."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.02)
        return time.monotonic() - self.started

    def page_answers(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/", timeout=2).status_code == 200
        except httpx2.TransportError:
            return False

    def ready(self) -> bool:
        try:
            return httpx2.get(f"http://127.0.0.1:{self.port}/readyz", timeout=2).status_code == 200
        except httpx2.TransportError:
            return False

    def announced(self) -> bool:
        return f"http://127.0.0.1:{self.port}/" in self.output

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.wait(15)
        self._out.close()


def _environment(home: Path, port: int) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    return {
        **kept, "MONOLANE_HOME": str(home), "PORT": str(port), "MONOLANE_MODEL": "words",
        "MONOLANE_BACKEND": "paced",
    }  # fmt: skip


def refusal(home: Path, port: int | str, **environment: str) -> str:
    """What a supervisor that cannot start says, which must be one line."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.supervisor"],
        cwd=ROOT,
        env={**_environment(home, 0), "PORT": str(port), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def all_gone(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that still live after `seconds`."""
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set up by the first start, shared by the later ones. Short: a socket lies in it."""
    folder = tmp_path_factory.mktemp("sup")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def first(home: Path) -> Iterator[Running]:
    """The start that sets up."""
    started = Running(home, free_port())
    yield started
    started.stop()


@pytest.fixture(scope="module")
def running(home: Path) -> Iterator[Running]:
    """One that tests share, as a start takes ten seconds of a processor; the last of them kills it."""
    started = Running(home, free_port())
    yield started
    started.stop()


@pytest.mark.slow
def test_it_starts_everything_says_so_and_one_interrupt_ends_it_all(first):
    first.wait_for(first.announced)
    first.wait_for(first.ready)
    states = first.output.partition("Monolane runs at")[0]
    assert all(f"  {name} " in states for name in NAMES)
    processes = first.processes()
    assert len(processes) >= len(NAMES)

    began = time.monotonic()
    first.process.send_signal(signal.SIGINT)
    assert first.process.wait(12) == 0
    assert time.monotonic() - began < 10
    assert all_gone(processes, 0.5) == []


@pytest.mark.slow
def test_a_second_start_shows_a_page_in_seconds_and_prepares_nothing(running):
    assert running.wait_for(running.page_answers) < 8 * _slowness()
    assert "migrated" not in running.output
    assert "collected" not in running.output


@pytest.mark.slow
def test_it_listens_on_loopback_only(running):
    running.wait_for(running.announced)
    listening = {
        connection.laddr.ip
        for process in running.processes()
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}


@pytest.mark.slow
def test_a_second_instance_is_refused_and_told_where_the_first_is(running, home):
    running.wait_for(running.announced)
    said = refusal(home, free_port())
    assert f"process {running.process.pid}" in said
    assert f"http://127.0.0.1:{running.port}/" in said


@pytest.mark.slow
def test_a_service_that_crashes_is_started_again_and_it_says_so(running):
    running.wait_for(running.announced)
    [web] = [process for process in running.processes() if "config.server" in process.cmdline()]
    web.kill()
    running.wait_for(lambda: "web      ended (signal SIGKILL)" in running.output)
    running.wait_for(running.page_answers)
    running.wait_for(lambda: running.output.count("web      ready") == 2)


@pytest.mark.slow
def test_nothing_outlives_a_supervisor_that_is_killed(running):
    running.wait_for(running.announced)
    processes = running.processes()
    running.process.kill()
    running.process.wait(10)
    assert all_gone(processes, 8) == []


def test_a_port_in_use_is_one_sentence_with_a_way_out(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = refusal(tmp_path, port)
    assert f"port {port} cannot be used (Address already in use)" in said
    assert f"PORT={port % 65535 + 1}" in said


@pytest.mark.parametrize("port", ["http", "0", "65536", "-1", "80.5"])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(SupervisorError, match="1 to 65535"):
        preflight.port_from(port)


def test_a_redis_that_does_not_answer_is_one_sentence(tmp_path):
    said = refusal(tmp_path, free_port(), REDIS_URL="redis://127.0.0.1:1/0")
    assert "the Redis of REDIS_URL does not answer" in said
    assert "unset REDIS_URL" in said


def test_a_home_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    said = refusal(tmp_path / "file", free_port())
    assert "MONOLANE_HOME" in said


def test_a_full_disk_is_one_sentence(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1_000_000))
    with pytest.raises(SupervisorError, match=r"1 MB left.*free some space"):
        preflight.check_home(tmp_path)


def test_a_home_that_others_could_read_is_closed_to_them(tmp_path):
    (tmp_path / "logs").mkdir()
    for folder in (tmp_path, tmp_path / "logs"):
        folder.chmod(0o755)
    preflight.check_home(tmp_path)
    assert [folder.stat().st_mode & 0o777 for folder in (tmp_path, tmp_path / "logs")] == [0o700, 0o700]


def test_a_log_is_put_aside_while_its_service_writes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.supervisor.child.LOG_BYTES", 2000)
    monkeypatch.setattr("tools.supervisor.child.LOOK_AT_LOG_S", 0.0)
    code = "import time\nfor n in range(10000): print('line', n, flush=True); time.sleep(0.0005)"
    guardian = Guardian()
    child = Child(Service("chatty", [sys.executable, "-c", code], lambda _: ""), tmp_path, ROOT, guardian)
    child.start()
    try:
        deadline = time.monotonic() + 10
        while not (tmp_path / "chatty.log.1").exists():
            assert time.monotonic() < deadline
            child.tend()
            time.sleep(0.01)
        assert child.running
        while not child.log.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert b"\0" not in child.log.read_bytes()  # it writes on at the new end, not at the old one
    finally:
        child.kill()
        guardian.close()


def test_a_path_too_long_for_a_socket_is_one_sentence(tmp_path):
    with pytest.raises(SupervisorError, match="longer than the 100 bytes"):
        preflight.check_redis(None, tmp_path / ("x" * 100))


def test_a_failed_preparation_names_the_command_and_its_last_word(tmp_path):
    (tmp_path / "logs").mkdir()
    with pytest.raises(SupervisorError, match=r"`manage.py migrate` failed: .*'mongo'.*postgres"):
        prepare(ROOT, tmp_path, {"MONOLANE_HOME": str(tmp_path), "DATABASE_URL": "mongo://x"})


def test_a_stop_ends_the_preparation_and_what_it_left_is_done_next_time(tmp_path):
    root = tmp_path / "root"
    (root / "requirements").mkdir(parents=True)
    (root / "requirements" / "base.txt").touch()
    (root / "manage.py").write_text("import time; time.sleep(60)")
    (tmp_path / "logs").mkdir()
    began = time.monotonic()

    with pytest.raises(Stopped):
        prepare(root, tmp_path, {}, lambda: time.monotonic() > began + 0.3)

    assert time.monotonic() < began + 10
    assert not list(tmp_path.glob("*.stamp"))


@pytest.mark.slow
def test_an_interrupt_while_it_sets_up_ends_it_soon_and_without_an_error(tmp_path_factory):
    running = Running(tmp_path_factory.mktemp("new"), free_port())
    try:
        running.wait_for(lambda: (running.home / "logs" / "migrate.log").exists())
        began = time.monotonic()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(15) == 0, running.output
        assert time.monotonic() - began < 3 * _slowness()
        assert "monolane:" not in running.output
    finally:
        running.stop()


def test_two_steps_that_fail_side_by_side_are_both_told(tmp_path, monkeypatch):
    def fail(_root, _home, _environment, _stops, command, *_):
        raise SupervisorError(f"{command} failed")

    monkeypatch.setattr("tools.supervisor.prepare._manage", fail)
    with pytest.raises(SupervisorError, match="migrate failed; collectstatic failed"):
        prepare(ROOT, tmp_path, {})


@pytest.mark.parametrize(("switch", "imports"), [("0", True), ("1", False)])
def test_the_committed_measurements_are_left_out_where_that_is_said(tmp_path, monkeypatch, switch, imports):
    (tmp_path / "logs").mkdir()
    ran: list[str] = []
    monkeypatch.setattr(
        "tools.supervisor.prepare._manage",
        lambda _root, _home, _environment, _stops, command, *_: ran.append(command),
    )
    monkeypatch.setenv("MONOLANE_WITHOUT_RESULTS", switch)
    prepare(ROOT, tmp_path, {})
    assert ("import_results" in ran) is imports


def test_a_switch_that_is_neither_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.supervisor.prepare._manage", lambda *_: None)
    monkeypatch.setenv("MONOLANE_WITHOUT_RESULTS", "yes")
    with pytest.raises(SupervisorError, match="MONOLANE_WITHOUT_RESULTS is 'yes'; it must be 0 or 1"):
        prepare(ROOT, tmp_path, {})


def test_a_service_that_keeps_crashing_is_given_longer_and_longer_pauses(tmp_path):
    guardian = Guardian()
    service = Service(
        "flaky", [sys.executable, "-c", "print('error: out of luck'); raise SystemExit(3)"], lambda _: ""
    )
    said = ends_of(Child(service, tmp_path, ROOT, guardian), guardian)
    assert [line.rpartition(" in ")[2] for line in said] == ["0.1 s", "0.2 s", "0.4 s"]
    assert all("exit code 3" in line and "out of luck" in line for line in said)


def test_a_service_that_crashes_soon_after_it_was_ready_is_given_pauses_too(tmp_path):
    guardian = Guardian()
    child = Child(Service("worker", ["false"], lambda _: ""), tmp_path, ROOT, guardian)
    said = ends_of(child, guardian, each_time=child.note_ready)
    assert [line.rpartition(" in ")[2] for line in said] == ["0.1 s", "0.2 s", "0.4 s"]


def ends_of(child: Child, guardian: Guardian, *, each_time: Callable[[], None] = lambda: None) -> list[str]:
    """What is said of the first three ends of a service; `each_time` is called while it runs."""
    said: list[str] = []

    def ended() -> bool:
        if child.running:
            each_time()
        trouble = child.tend()
        said.extend([trouble] if trouble else [])
        return len(said) == 3

    child.start()
    each_time()
    try:
        wait_until(ended, every_s=0.01)
    finally:
        child.kill()
        guardian.close()
    return said


def test_what_the_process_before_left_behind_makes_no_service_ready(tmp_path):
    guardian = Guardian()
    mark = tmp_path / "celery.ready"
    mark.touch()
    child = Child(Service("celery", ["sleep", "60"], lambda _: "", {}, mark), tmp_path, ROOT, guardian)
    child.start()
    child.kill()
    guardian.close()
    assert not mark.exists()


def test_the_heartbeat_of_a_dead_worker_makes_the_next_one_not_ready(tmp_path, redis_url):
    plan = Plan(tmp_path, 1, redis_url, "w")
    now = time.monotonic()
    heartbeat = Heartbeat("w", "tiny", "numpy", ("cpu",), "idle").to_hash()
    with redis.Redis.from_url(redis_url) as client:
        client.hset(worker_key("w"), mapping={**heartbeat, "beat": f"w 0123456789abcdef {now}"})
    assert worker_state(plan, now + 1.0) == ""
    assert worker_state(plan, now - 1.0) == "ready: tiny on numpy"


def test_a_name_that_is_only_taken_is_no_state_yet(tmp_path, redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.hset(worker_key("w"), "beat", "w 0123456789012345")  # as HeartbeatThread takes a free name
    assert worker_state(Plan(tmp_path, 1, redis_url, "w"), 0.0) == ""


def test_a_service_that_was_ready_for_long_is_started_again_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.supervisor.child.STEADY_S", 0.0)
    guardian = Guardian()
    child = Child(Service("worker", ["sleep", "60"], lambda _: ""), tmp_path, ROOT, guardian)
    child.start()
    child.note_ready()
    first = child.pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    said = child.tend()
    assert child.running
    assert child.pid != first
    assert "signal SIGKILL" in said
    assert said.endswith("starting it again")
    child.kill()
    guardian.close()


def test_the_guardian_ends_a_group_that_ignores_being_asked(tmp_path):
    guardian = Guardian()
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    guardian.watch(process.pid)
    guardian.close()
    assert process.wait(1) == -signal.SIGKILL
    process.stdout.close()


def _slowness() -> float:
    """How much longer than on a quiet machine things take: other tests may run beside this one."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


@pytest.mark.parametrize(
    ("last", "quoted"),
    [
        ("2026-11-22 04:41:38,220 INFO engine.serving.worker: serves smollm2-135m on cpu", False),
        ("ModuleNotFoundError: No module named 'channels'", True),
        ("monolane worker: no model is named 'nano'", True),
        ("2026-11-22 04:41:38,220 ERROR engine.serving.worker: the launch failed", True),
    ],
)
def test_only_an_error_is_quoted_as_the_reason_of_an_end(tmp_path, last, quoted):
    child = Child(Service("worker", (), lambda _: ""), tmp_path, tmp_path, Guardian())
    child.log.write_text(f"it began\n{last}\n")
    assert child.reason() == (last if quoted else f"see {child.log}")

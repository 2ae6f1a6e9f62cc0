"""Other engines, compiled for this machine in a virtual environment of their own."""

from __future__ import annotations

import sys
from pathlib import Path

from tools.setup import ROOT, call, step

VENV = ROOT / ".venv-peers"
PYTHON = VENV / "bin" / "python"
_LOCK = ROOT / "requirements" / "peers.txt"
_NATIVE = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}


def make_peers() -> Path:
    """The interpreter of the peers' environment, made first if need be (minutes: it compiles llama.cpp).

    Raises tools.setup.SetupError if that fails.
    """
    step("peers", [_LOCK], PYTHON, _install)
    return PYTHON


def _install() -> None:
    call(
        [sys.executable, "-m", "venv", VENV],
        "making the peers' virtual environment",
        "install the venv module (Debian: apt-get install python3.11-venv)",
    )
    call(
        [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "--require-hashes", "-r", _LOCK],
        "compiling llama.cpp",
        "it needs a network and a C++ compiler (Debian: apt-get install g++)",
        _NATIVE,
    )

"""The official JavaScript client against the same live server; client.mjs says what it does there."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


@pytest.mark.slow
def test_the_official_javascript_client_finds_all_as_it_expects(live):
    node = shutil.which("node")
    assert node is not None, "Node.js is missing: `make setup-dev` installs it"
    script = Path(__file__).with_name("client.mjs")
    done = subprocess.run(
        [node, str(script), live.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr

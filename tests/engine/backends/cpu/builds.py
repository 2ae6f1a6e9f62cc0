"""The builds of the CPU kernel that tests go through."""

from __future__ import annotations

from engine.backends.cpu.build import distinct, runnable
from tests.nightly import each_time_but

BUILDS = each_time_but([target for target in runnable() if target not in distinct()], runnable())
"""Those that this processor runs. What is put together of others waits for the night: it takes half a minute
to compile.
"""

"""Kernels compiled before they are needed, side by side: NVRTC takes one core for each, and many seconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed

from engine.backends.cuda.compile import compile_kernel
from engine.measuring.bandwidth import usable_cores
from engine.progress import OnProgress, Progress

Source = tuple[str, str]
"""A file of kernels/cuda, or the path of another, and the header that specialises it."""


def precompile(sources: Iterable[Source], progress: OnProgress) -> int:
    """Puts the machine code of all `sources` in the cache; how many there were. No GPU is needed.

    Each in a process of its own, as many at a time as there are cores. Raises BackendUnavailable if there is
    no NVRTC here, or if one does not compile.
    """
    wanted = list(dict.fromkeys(sources))
    if not wanted:
        return 0
    # A fresh interpreter, not a copy: a driver that this process has started does not survive a fork.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(usable_cores(), len(wanted)), mp_context=context) as pool:
        pending = [pool.submit(_compile, name, header) for name, header in wanted]
        try:
            for done, future in enumerate(as_completed(pending), 1):
                future.result()
                progress(Progress(done, len(wanted), "kernels", "compiling kernels"))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return len(wanted)


def _compile(name: str, header: str) -> None:
    compile_kernel(name, header)

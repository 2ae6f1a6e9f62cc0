"""What is done about garbage in processes that answer within milliseconds, and hold gigabytes."""

from __future__ import annotations

import gc
import traceback

_NEW_OBJECTS = 20_000
"""What a dozen requests leave. With Python's 700 each had two looks of 0.08 ms, every fifth one of 1 ms."""


def collect_rarely() -> None:
    """What the process has by now is looked through no more, what it makes only once there is much of it."""
    gc.collect()  # what is frozen as garbage stays for good
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 20, 20)


def release_locals(error: BaseException) -> None:
    """Lets go of the local variables of the functions that `error` ended, and of those that led to it.

    Whoever keeps an error keeps these too, such as the weights of a model that was being loaded.
    """
    seen = set[int]()
    errors: list[BaseException | None] = [error]
    while errors:
        one = errors.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            errors += one.__cause__, one.__context__

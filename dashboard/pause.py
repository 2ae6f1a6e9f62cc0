"""A pause after a failure: whoever would ask a dead Redis at every step asks it once in a while."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pause:
    """Of `seconds`, from `begin` on; it ends by itself. Each process has its own; threads may share it."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self._clock = clock
        self._until = float("-inf")

    def begin(self) -> None:
        """Begins, or begins again."""
        self._until = self._clock() + self.seconds

    @property
    def over(self) -> bool:
        """Whether one may ask; so it is before the first failure as well."""
        return self._clock() >= self._until


redis_away = Pause(10.0)
"""What one part found out others need not wait for: a click may cancel a point, tell Celery, give hints."""

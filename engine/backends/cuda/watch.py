"""Whether what runs on a GPU has ended, goes on, or is lost."""

from __future__ import annotations

import time
from typing import Any

from engine.backends.cuda.driver import Device

_START_GRACE_S = 10.0
"""For the driver to bring a process's first kernel onto the GPU, and for a host that was held up itself."""
_BUDGETS_A_PASS = 4
"""How many spin budgets a pass, of decode or of a chunk of the prompt, may take. One that is well takes a
fraction of one, and the watchdog ends a launch in which any single wait takes one; what outlasts four runs no
watchdog at all."""


class Watch:
    """Looks after one launch on `stream`, of which `silent` passes in a row may tell the host nothing."""

    def __init__(self, device: Device, stream: Any, spin_budget_s: float, silent: int = 1) -> None:
        self.loss = ""
        """Why the GPU is lost, in a sentence; empty while it is not."""
        self._device, self._stream = device, stream
        self._patience_s = _START_GRACE_S + _BUDGETS_A_PASS * spin_budget_s * silent
        self._shown: object = None
        self._since = 0.0

    def begin(self) -> None:
        """From now on something must be shown."""
        self._since = time.perf_counter()

    def has_ended(self, shown: object) -> bool:
        """Whether the launch is over. Without that and without a change of what is `shown` for longer than
        a pass can take, the kernel does not run: there is a `loss` then, and the device is abandoned.
        """
        now = time.perf_counter()
        if shown != self._shown:
            self._shown, self._since = shown, now
        device = self._device
        result = device.driver.CUresult
        (status,) = device.driver.cuStreamQuery(self._stream)
        if status == result.CUDA_SUCCESS:
            return True
        if status != result.CUDA_ERROR_NOT_READY:
            self.loss = f"GPU {device.ordinal} was lost while it ran a request ({status.name})"
        elif now - self._since > self._patience_s:
            device.abandoned = True
            self.loss = (
                f"GPU {device.ordinal} was lost while it ran a request: no token, no part of the"
                f" prompt and no end in {self._patience_s:g} s"
            )
        return False

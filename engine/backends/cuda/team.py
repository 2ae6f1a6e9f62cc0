"""One request on several GPUs: a launch on each, which talk to each other and not to the host.

The first one says which tokens there are and is told to stop; all end with the same pass. A GPU that is lost
ends the request on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Outcome, PhaseTime, Token
from engine.backends.cuda.launch import CudaLaunch, Machine, Work
from engine.errors import BackendFailure

_LOOK_SECONDS = 50e-6


class TeamLaunch:
    """Implements engine.backends.base.Launch over one launch a GPU, in the order of their ranks."""

    def __init__(self, machines: Sequence[Machine], work: Work) -> None:
        self._machines = machines
        self._failure: BackendFailure | None = None
        self._outcome: Outcome | None = None
        self._launches: list[CudaLaunch] = []
        try:
            for machine in machines:
                self._launches.append(CudaLaunch(machine, work))
            for launch in self._launches:
                launch.start(self._launches[0].logits_address)
        except BaseException:
            self._give_up()
            raise

    @property
    def prefilled(self) -> int:
        return self._launches[0].prefilled

    @property
    def outcome(self) -> Outcome | None:
        self._look()
        return self._outcome

    @property
    def ended(self) -> bool:
        """True once it has an outcome or has broken down, on every GPU."""
        return self._outcome is not None or self._failure is not None

    @property
    def starved_us(self) -> Mapping[str, float]:
        """Of the profile: a mean over the GPUs."""
        found = [launch.starved_us for launch in self._launches]
        return {name: float(np.mean([f[name] for f in found])) for name in found[0]}

    def poll(self, timeout: float) -> Sequence[Token]:
        deadline = time.perf_counter() + timeout
        while True:
            tokens = self._launches[0].take()
            if tokens:
                return tokens
            self._look()
            if self.ended:
                tokens = self._launches[0].take()
                if not tokens and self._failure is not None:
                    raise self._failure
                return tokens
            if time.perf_counter() >= deadline:
                return []
            time.sleep(_LOOK_SECONDS)

    def stop(self) -> None:
        self._launches[0].stop()

    def close(self) -> None:
        """Asks a launch that still runs to stop, waits for all GPUs, and frees what they held."""
        self.stop()
        while not self.ended:
            self._look()
            time.sleep(_LOOK_SECONDS)
        for launch in self._launches:
            launch.close()

    def wait(self) -> Outcome:
        """Blocks until the end. Raises BackendFailure if a GPU broke down."""
        while not self.ended:
            self._look()
            time.sleep(_LOOK_SECONDS)
        if self._failure is not None:
            raise self._failure
        assert self._outcome is not None  # noqa: S101  ended without failure
        return self._outcome

    def logits(self) -> NDArray[np.float32]:
        """Of every id from the work's first on, [ids, vocab]: all GPUs write to the first one's memory."""
        return self._launches[0].logits()

    def _look(self) -> None:
        """Notices the end: once all have ended, or, if one broke down, after the others were made to."""
        if self.ended:
            return
        outcomes = [launch.outcome for launch in self._launches]
        failed = [launch for launch in self._launches if launch.failure is not None]
        if failed:
            for launch in self._launches:
                launch.abort()
        if not all(launch.ended for launch in self._launches):
            return
        if failed:
            first = next((f for f in failed if not f.needs_recovery), None)
            first = first or next((f for f in failed if f.stuck), failed[0])
            self._start_over()
            self._failure = first.breakdown
            return
        ended = [outcome for outcome in outcomes if outcome is not None]
        if len(ended) == len(outcomes):
            self._outcome = _joined(ended)

    def _give_up(self) -> None:
        """Not all could be started: those that were wait for the others in vain."""
        for launch in self._launches:
            launch.abort()
        for launch in self._launches:
            launch.close()
        with suppress(BackendFailure):  # the failure that led here says more
            self._start_over()

    def _start_over(self) -> None:
        """Some have counted a pass more than others and hold words of it: the next one is the first."""
        if all(launch.usable for launch in self._launches):
            for machine in self._machines:
                machine.empty_mailboxes()


def _joined(outcomes: Sequence[Outcome]) -> Outcome:
    """The first GPU's outcome, with all GPUs' spans and their mean times."""
    phases = {
        name: PhaseTime(
            *(
                float(np.mean([getattr(o.phases_us[name], part) for o in outcomes]))
                for part in ("work", "wait_local", "wait_peer")
            )
        )
        for name in outcomes[0].phases_us
    }
    spans = tuple(replace(span, device=rank) for rank, o in enumerate(outcomes) for span in o.trace)
    return replace(outcomes[0], phases_us=phases, trace=spans)

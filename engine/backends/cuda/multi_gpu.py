"""One request on several GPUs: a launch on each, which talk to each other and not to the host.

The first one says which tokens there are and is told to stop; all end with the same pass. A GPU that is lost
ends the request on all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import Outcome, Token
from engine.backends.cuda.launch import CudaLaunch, DeviceContext, LaunchPlan
from engine.backends.cuda.polling import PolledLaunch
from engine.backends.cuda.profile import mean_phases, mean_starved
from engine.errors import BackendFailure


class Broken(Protocol):
    """What a launch on one GPU says of how it broke down."""

    @property
    def usable(self) -> bool: ...
    @property
    def stuck(self) -> bool: ...


B = TypeVar("B", bound=Broken)


def cause_of(failed: Sequence[B]) -> B:
    """Of launches that broke down together: one whose GPU is lost, else one that itself waited too long."""
    lost = (launch for launch in failed if not launch.usable)
    stuck = (launch for launch in failed if launch.stuck)
    return next(chain(lost, stuck), failed[0])


class MultiGpuLaunch(PolledLaunch):
    """Implements engine.backends.base.Launch over one launch a GPU, in the order of their ranks.

    It has ended once it has on every GPU.
    """

    def __init__(self, contexts: Sequence[DeviceContext], plan: LaunchPlan) -> None:
        super().__init__(plan.max_new)
        self._contexts = contexts
        self._breakdown: BackendFailure | None = None
        self._launches: list[CudaLaunch] = []
        try:
            for context in contexts:
                self._launches.append(CudaLaunch(context, plan))
            for launch in self._launches:
                launch.start(self._launches[0].logits_address)
        except BaseException:
            self._give_up()
            raise

    @property
    def prefilled(self) -> int:
        return self._launches[0].prefilled

    @property
    def prefill_ns(self) -> int:
        """Nanoseconds of the launch when `prefilled` tokens were there."""
        return self._launches[0].prefill_ns

    @property
    def breakdown(self) -> BackendFailure | None:
        return self._breakdown

    @property
    def starved_us(self) -> Mapping[str, float]:
        """Of the profile: a mean over the GPUs."""
        return mean_starved([launch.starved_us for launch in self._launches])

    def take(self) -> Sequence[Token]:
        return self._launches[0].take()

    def sequence(self) -> list[int]:
        """The ids whose keys and values an ended launch has left; none if it broke down."""
        return [] if self._breakdown else self._launches[0].sequence()

    def stop(self) -> None:
        self._launches[0].stop()

    def close(self) -> None:
        """Asks a launch that still runs to stop, waits for all GPUs, and frees what they held."""
        self.stop()
        self._wait_for_end()
        for launch in self._launches:
            launch.close()

    def logits(self) -> NDArray[np.float32]:
        """As one launch's: all GPUs write to the first one's memory."""
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
            self._start_over()
            self._breakdown = cause_of(failed).breakdown
            return
        ended = [outcome for outcome in outcomes if outcome is not None]
        if len(ended) == len(outcomes):
            self._outcome = _join_outcomes(ended)

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
            for context in self._contexts:
                context.empty_mailboxes()


def _join_outcomes(outcomes: Sequence[Outcome]) -> Outcome:
    """The first GPU's outcome, with all GPUs' spans and their mean times."""
    phases = mean_phases([outcome.phases_us for outcome in outcomes])
    spans = tuple(replace(span, device=rank) for rank, o in enumerate(outcomes) for span in o.trace)
    return replace(outcomes[0], phases_us=phases, trace=spans)

"""Launches of rows on all GPUs of a model: one request by the kernel for one, several by one for several.

GPUs talk to each other and not to the host: the first one says which tokens there are and is told who stops,
and all end with the same pass. What breaks down on one ends the launch on all of them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from engine.backends.base import Token
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.contract import Finish
from engine.backends.cuda.launch import DeviceContext, LaunchPlan
from engine.backends.cuda.multi_gpu import MultiGpuLaunch, cause_of
from engine.backends.cuda.profile import LaunchProfile, mean_profile
from engine.backends.cuda.rows import Part, RunningLaunch
from engine.backends.cuda.together import Seats, SeveralLaunch
from engine.errors import BackendFailure


class RowLaunches:
    """Starts what a RowScheduler asks for.

    `contexts` are the GPUs by rank; layouts and kernels go by the requests that they are for, and kernels
    then by rank.
    """

    def __init__(
        self,
        contexts: Sequence[DeviceContext],
        layouts: Mapping[int, Layout],
        kernels: Mapping[int, Sequence[Any]],
    ) -> None:
        self._contexts, self._layouts, self._kernels = contexts, layouts, kernels
        self._team = [Seats(context, max(layouts)) for context in contexts]
        self._last: TeamLaunch | None = None

    @property
    def profile(self) -> LaunchProfile | None:
        """Of the last launch of several, once it has ended (TeamLaunch.profile)."""
        return None if self._last is None else self._last.profile

    def begin(self, parts: Sequence[Part]) -> RunningLaunch:
        plans = [part.plan for part in parts]
        if len(parts) == 1 and parts[0].decodes:
            return LoneLaunch(self._contexts, plans[0])
        size = next(size for size in sorted(self._layouts) if size >= len(parts))
        layout, kernels = self._layouts[size], self._kernels[size]
        self._last = TeamLaunch(self._contexts, self._team, layout, plans, kernels)
        return self._last


class LoneLaunch:
    """A row alone. Implements rows.RunningLaunch."""

    def __init__(self, contexts: Sequence[DeviceContext], plan: LaunchPlan) -> None:
        self._launch = MultiGpuLaunch(contexts, plan)

    @property
    def ended(self) -> bool:
        _ = self._launch.outcome  # looks
        return self._launch.ended

    @property
    def failure(self) -> BackendFailure | None:
        return self._launch.breakdown

    def take(self, part: int) -> Sequence[Token]:  # noqa: ARG002  there is one
        return self._launch.take()

    def finish(self, part: int) -> Finish:  # noqa: ARG002
        if self._launch.breakdown is not None:
            return Finish.ABORTED
        outcome = self._launch.outcome
        return Finish[outcome.finish_reason.upper()] if outcome else Finish.RUNNING

    def prefilled(self, part: int) -> tuple[int, int]:  # noqa: ARG002
        return self._launch.prefilled, self._launch.prefill_ns

    def stop(self, part: int | None = None) -> None:  # noqa: ARG002
        self._launch.stop()

    def close(self) -> None:
        self._launch.close()


class TeamLaunch:
    """Several rows, in a launch on each GPU. Implements rows.RunningLaunch."""

    def __init__(
        self,
        contexts: Sequence[DeviceContext],
        team: Sequence[Seats],
        layout: Layout,
        plans: Sequence[LaunchPlan],
        kernels: Sequence[Any],
    ) -> None:
        self._contexts, self._team = contexts, team
        self._failure: BackendFailure | None = None
        self._ended = False
        self._launches: list[SeveralLaunch] = []
        try:
            for context in contexts:
                self._launches.append(SeveralLaunch(context, team, layout, plans))
            for launch, kernel in zip(self._launches, kernels, strict=True):
                launch.start(kernel)
        except BaseException:
            self._give_up()
            raise

    @property
    def ended(self) -> bool:
        """Once it has on every GPU; if it broke down on one, after the others were made to."""
        if self._ended:
            return True
        ended = [launch.ended for launch in self._launches]
        failed = [launch for launch in self._launches if launch.failure is not None]
        if failed:
            self._abort()
        self._ended = all(ended)
        if self._ended and failed:
            self._failure = cause_of(failed).failure
            self._start_over()
        return self._ended

    @property
    def failure(self) -> BackendFailure | None:
        return self._failure

    @property
    def profile(self) -> LaunchProfile | None:
        """Mean over the GPUs, of a launch that has ended; None unless they have the profile compiled in."""
        found = [launch.profile for launch in self._launches if launch.profile is not None]
        return mean_profile(found) if found else None

    def take(self, part: int) -> Sequence[Token]:
        return self._launches[0].take(part)

    def finish(self, part: int) -> Finish:
        """Once every GPU has told of it: until then one may break down in the part's last pass."""
        found = [launch.finish(part) for launch in self._launches]
        if Finish.RUNNING in found:
            return Finish.RUNNING
        return Finish.ABORTED if Finish.ABORTED in found else found[0]

    def prefilled(self, part: int) -> tuple[int, int]:
        return self._launches[0].prefilled(part)

    def stop(self, part: int | None = None) -> None:
        self._launches[0].stop(part)

    def close(self) -> None:
        """Asks all parts to end, waits for that, and gives back what the launches held."""
        with suppress(BackendFailure):  # as in _abort
            self.stop()
        while not self.ended:
            time.sleep(1e-3)
        for launch in self._launches:
            launch.close()

    def _give_up(self) -> None:
        """Not all could be started: those that were wait for the others in vain."""
        self._abort()
        for launch in self._launches:
            with suppress(BackendFailure):
                launch.close()
        with suppress(BackendFailure):  # the failure that led here says more
            self._start_over()

    def _abort(self) -> None:
        for launch in self._launches:
            with suppress(BackendFailure):  # a GPU that is lost has ended it
                launch.abort()

    def _start_over(self) -> None:
        """Mailboxes hold words of an unfinished pass, of which some have counted one more than others."""
        if all(launch.usable for launch in self._launches):
            for context, seats in zip(self._contexts, self._team, strict=True):
                seats.empty(context)

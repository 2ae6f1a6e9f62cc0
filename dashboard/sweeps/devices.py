"""One sweep a device at a time: who holds which kind of device, and who waits for it, in which order.

The lock is the primary key of `DeviceHold`; a run takes all it needs or nothing. The queue is the order in
which runs were created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction

from dashboard.models import ACTIVE, DeviceHold, State, SweepRun


def take(run: SweepRun) -> bool:
    """Takes every device that `run` needs if it is next in line; else takes none and returns False."""
    if blocker_of(run) is not None:
        return False
    try:
        with transaction.atomic():
            DeviceHold.objects.bulk_create(DeviceHold(device=device, run=run) for device in run.devices)
    except IntegrityError:  # another process was quicker
        return False
    return True


def free(run_id: int) -> None:
    """Gives back what a run holds."""
    DeviceHold.objects.filter(run_id=run_id).delete()


def blocker_of(run: SweepRun) -> SweepRun | None:
    """The run that `run` waits for: the holder of one of its devices, else an earlier one in the queue."""
    return _blocker(run, _active(), _holders())


@dataclass(frozen=True, slots=True)
class Waiting:
    """A queued run: `place` counts from 1 among those that wait, `behind` is the run it waits for."""

    run: SweepRun
    place: int
    behind: SweepRun | None


@dataclass(frozen=True, slots=True)
class Line:
    """One kind of device: the run that has it, and the runs that want it, first come first."""

    device: str
    running: SweepRun | None
    waiting: tuple[Waiting, ...]


def lines() -> list[Line]:
    """The queue of every device that is held or wanted. Two queries."""
    active, held = _active(), _holders()
    by_pk = {run.pk: run for run in active}
    found = []
    for device in sorted({device for run in active for device in run.devices}):
        waiting = [run for run in active if run.state == State.QUEUED and device in run.devices]
        found.append(
            Line(
                device,
                by_pk.get(held.get(device, 0)),
                tuple(
                    Waiting(run, place, _blocker(run, active, held))
                    for place, run in enumerate(waiting, start=1)
                ),
            )
        )
    return found


def _active() -> list[SweepRun]:
    """Runs that have not ended, first come first."""
    return list(SweepRun.objects.filter(state__in=ACTIVE).select_related("who").order_by("created", "pk"))


def _holders() -> dict[str, int]:
    return dict(DeviceHold.objects.values_list("device", "run_id"))


def _blocker(run: SweepRun, active: list[SweepRun], held: dict[str, int]) -> SweepRun | None:
    by_pk = {other.pk: other for other in active}
    for device in run.devices:
        holder = held.get(device)
        if holder is not None and holder != run.pk:
            return by_pk.get(holder)
    mine: Any = (run.created, run.pk)
    for other in active:
        earlier = other.state == State.QUEUED and (other.created, other.pk) < mine
        if earlier and set(other.devices) & set(run.devices):
            return other
    return None

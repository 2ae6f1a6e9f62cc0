"""A request on several GPUs when one breaks down. Launches are played: no test machine loses a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.backends.base import Outcome, Token
from engine.backends.cuda import team
from engine.backends.cuda.launch import Work
from engine.backends.cuda.team import TeamLaunch
from engine.errors import BackendFailure, DeviceLost

WORK = Work((1, 2, 3), 8)


@dataclass
class Machine:
    """One GPU: what becomes of its launch, and what was done to it."""

    rank: int
    lost: bool = False
    stuck: bool = False
    refuses: bool = False
    emptied: int = 0
    serial: int = 5

    def empty_mailboxes(self) -> None:
        self.emptied += 1
        self.serial = 1


@dataclass
class PlayedLaunch:
    """Runs until it is aborted, unless its GPU is lost or stuck."""

    machine: Machine
    _work: Work
    tokens: list[Token] = field(default_factory=lambda: [Token(7, 1)])
    aborted: bool = False
    closed: bool = False
    logits_address: int = 0
    outcome: Outcome | None = None

    def start(self, _logits: int) -> None:
        if self.machine.refuses:
            raise BackendFailure(f"GPU {self.machine.rank} refused to start")
        self.machine.serial += 1  # by the pass that it begins and does not end

    @property
    def ended(self) -> bool:
        return self.machine.lost or self.machine.stuck or self.aborted

    @property
    def failure(self) -> str | None:
        if self.machine.lost:
            return f"GPU {self.machine.rank} was lost"
        if self.machine.stuck:
            return f"GPU {self.machine.rank} waited too long"
        return "it was made to give up" if self.aborted else None

    @property
    def stuck(self) -> bool:
        return self.machine.stuck

    @property
    def usable(self) -> bool:
        return not self.machine.lost

    @property
    def needs_recovery(self) -> bool:
        return self.ended and self.usable

    @property
    def breakdown(self) -> BackendFailure:
        return (BackendFailure if self.usable else DeviceLost)(self.failure)

    def take(self) -> Sequence[Token]:
        taken, self.tokens = self.tokens, []
        return taken

    def stop(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(team, "CudaLaunch", PlayedLaunch)


def test_a_lost_gpu_ends_the_request_on_all_after_what_it_had_generated() -> None:
    machines = [Machine(rank, lost=rank == 2) for rank in range(4)]
    launch = TeamLaunch(machines, WORK)  # type: ignore[arg-type]
    assert launch.poll(1.0) == [Token(7, 1)]
    with pytest.raises(DeviceLost, match="GPU 2 was lost"):
        launch.poll(1.0)
    assert launch.ended
    assert all(each.aborted for each in launch._launches)
    assert not any(machine.emptied for machine in machines), "the driver would refuse"


def test_a_gpu_that_stands_still_is_named_and_all_start_over_with_empty_mailboxes() -> None:
    machines = [Machine(rank, stuck=rank == 1) for rank in range(4)]
    launch = TeamLaunch(machines, WORK)  # type: ignore[arg-type]
    with pytest.raises(BackendFailure, match="GPU 1 waited too long") as failure:
        launch.wait()
    assert not isinstance(failure.value, DeviceLost)
    assert [machine.emptied for machine in machines] == [1, 1, 1, 1]


def test_closing_a_broken_request_frees_what_every_gpu_held() -> None:
    launch = TeamLaunch([Machine(0), Machine(1, lost=True)], WORK)  # type: ignore[arg-type, list-item]
    launch.close()
    assert all(each.closed for each in launch._launches)


def test_gpus_of_which_not_all_start_agree_on_the_next_pass() -> None:
    machines = [Machine(rank, refuses=rank == 2) for rank in range(4)]
    with pytest.raises(BackendFailure, match="GPU 2 refused to start"):
        TeamLaunch(machines, WORK)  # type: ignore[arg-type]
    assert [machine.serial for machine in machines] == [1, 1, 1, 1]
    assert [machine.emptied for machine in machines] == [1, 1, 1, 1]


def test_mailboxes_are_left_alone_when_a_gpu_is_lost_while_the_others_start() -> None:
    machines = [Machine(0, lost=True), Machine(1, refuses=True)]
    with pytest.raises(BackendFailure, match="GPU 1 refused to start"):
        TeamLaunch(machines, WORK)  # type: ignore[arg-type]
    assert not any(machine.emptied for machine in machines), "the driver would refuse"

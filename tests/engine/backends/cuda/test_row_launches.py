"""Several rows on several GPUs when one breaks down. Launches are played: no test machine loses a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from engine.backends.base import Token
from engine.backends.cuda import row_launches
from engine.backends.cuda.contract import Finish
from engine.backends.cuda.launch import LaunchPlan
from engine.backends.cuda.row_launches import TeamLaunch
from engine.errors import BackendFailure, DeviceLost

PLANS = [LaunchPlan((1, 2, 3), 8), LaunchPlan((4, 5), 8)]


@dataclass
class PlayedGpu:
    """One GPU: what becomes of its launch, and what was done to it."""

    rank: int
    lost: bool = False
    stuck: bool = False
    refuses: bool = False
    refuses_abort: bool = False
    emptied: int = 0

    def empty(self, context: PlayedGpu) -> None:
        """As the rows' memory on it."""
        assert context is self
        self.emptied += 1


class PlayedLaunch:
    """Runs until it is aborted, or its GPU is lost or stuck."""

    def __init__(self, gpu: PlayedGpu, team: list[PlayedGpu], *_: Any) -> None:
        assert team[gpu.rank] is gpu
        self.gpu = gpu
        self.finishes = [Finish.RUNNING] * len(PLANS)
        self.asked_to_stop: list[int | None] = []
        self.started = self.aborted = self.closed = self.is_done = False

    def start(self, kernel: str) -> None:
        if self.gpu.refuses:
            raise BackendFailure(f"GPU {self.gpu.rank} refused to start")
        assert kernel == f"kernel of GPU {self.gpu.rank}"
        self.started = True

    @property
    def ended(self) -> bool:
        return not self.started or self.is_done or self.aborted or self.gpu.lost or self.gpu.stuck

    @property
    def failure(self) -> BackendFailure | None:
        if self.gpu.lost:
            return DeviceLost(f"GPU {self.gpu.rank} was lost")
        if self.gpu.stuck:
            return BackendFailure(f"GPU {self.gpu.rank} waited too long")
        return BackendFailure("it was made to give up") if self.aborted else None

    @property
    def stuck(self) -> bool:
        return self.gpu.stuck

    @property
    def usable(self) -> bool:
        return not self.gpu.lost

    def take(self, part: int) -> list[Token]:
        assert self.gpu.rank == 0, "the others tell the host nothing"
        return [Token(7 + part, 1)]

    def finish(self, part: int) -> Finish:
        return self.finishes[part]

    def stop(self, part: int | None = None) -> None:
        self.asked_to_stop.append(part)

    def abort(self) -> None:
        if self.gpu.refuses_abort:
            raise DeviceLost(f"GPU {self.gpu.rank} takes no orders")
        self.aborted = self.aborted or not self.ended

    def close(self) -> None:
        self.closed = True


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_launches, "SeveralLaunch", PlayedLaunch)


def begun(gpus: list[PlayedGpu]) -> tuple[TeamLaunch, list[PlayedLaunch]]:
    kernels = [f"kernel of GPU {gpu.rank}" for gpu in gpus]
    launch = TeamLaunch(cast("Any", gpus), cast("Any", gpus), cast("Any", None), PLANS, kernels)
    return launch, cast("list[PlayedLaunch]", launch._launches)


def test_a_launch_has_ended_once_it_has_on_all_gpus() -> None:
    launch, of_gpus = begun([PlayedGpu(rank) for rank in range(2)])
    of_gpus[0].is_done = True
    assert not launch.ended
    of_gpus[1].is_done = True
    assert launch.ended
    assert launch.failure is None


def test_a_row_ends_once_all_gpus_tell_of_it_and_as_the_first_one_says() -> None:
    launch, (first, second) = begun([PlayedGpu(rank) for rank in range(2)])
    first.finishes = [Finish.STOP, Finish.LENGTH]
    assert [launch.finish(part) for part in (0, 1)] == [Finish.RUNNING] * 2
    second.finishes = [Finish.STOP, Finish.ABORTED]
    assert [launch.finish(part) for part in (0, 1)] == [Finish.STOP, Finish.ABORTED]


def test_the_first_gpu_tells_tokens_and_is_told_who_stops() -> None:
    launch, (first, second) = begun([PlayedGpu(rank) for rank in range(2)])
    assert launch.take(1) == [Token(8, 1)]
    launch.stop(1)
    launch.stop()
    assert (first.asked_to_stop, second.asked_to_stop) == ([1, None], [])


def test_a_lost_gpu_ends_all_rows_on_all() -> None:
    gpus = [PlayedGpu(rank, lost=rank == 2) for rank in range(4)]
    launch, of_gpus = begun(gpus)
    assert not launch.ended, "the others have just been told"
    assert launch.ended
    assert isinstance(launch.failure, DeviceLost)
    assert str(launch.failure) == "GPU 2 was lost"
    assert [each.aborted for each in of_gpus] == [True, True, False, True]
    assert not any(gpu.emptied for gpu in gpus), "the driver would refuse"


def test_a_gpu_that_stands_still_is_named_and_rows_begin_anew_with_empty_mailboxes() -> None:
    gpus = [PlayedGpu(rank, stuck=rank == 1) for rank in range(2)]
    launch, of_gpus = begun(gpus)
    launch.close()
    assert str(launch.failure) == "GPU 1 waited too long"
    assert [gpu.emptied for gpu in gpus] == [1, 1]
    assert all(each.closed for each in of_gpus)


def test_gpus_of_which_not_all_start_agree_on_the_next_pass() -> None:
    gpus = [PlayedGpu(rank, refuses=rank == 2) for rank in range(4)]
    with pytest.raises(BackendFailure, match="GPU 2 refused to start"):
        begun(gpus)
    assert [gpu.emptied for gpu in gpus] == [1, 1, 1, 1]


def test_a_gpu_that_takes_no_orders_keeps_nobody_from_ending() -> None:
    gpus = [PlayedGpu(rank, lost=rank == 0, refuses_abort=rank == 0) for rank in range(3)]
    launch, of_gpus = begun(gpus)
    launch.close()
    assert str(launch.failure) == "GPU 0 was lost"
    assert [each.aborted for each in of_gpus] == [False, True, True]
    assert all(each.closed for each in of_gpus)

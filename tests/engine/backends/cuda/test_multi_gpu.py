"""A request on several GPUs when one breaks down. Launches are played: no test machine loses a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from engine.backends.base import Outcome, Token
from engine.backends.cuda import multi_gpu
from engine.backends.cuda.launch import LaunchPlan
from engine.backends.cuda.multi_gpu import MultiGpuLaunch
from engine.errors import BackendFailure, DeviceLost

PLAN = LaunchPlan((1, 2, 3), 8)


@dataclass
class PlayedContext:
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

    context: PlayedContext
    _plan: LaunchPlan
    tokens: list[Token] = field(default_factory=lambda: [Token(7, 1)])
    aborted: bool = False
    closed: bool = False
    logits_address: int = 0
    outcome: Outcome | None = None

    def start(self, _logits: int) -> None:
        if self.context.refuses:
            raise BackendFailure(f"GPU {self.context.rank} refused to start")
        self.context.serial += 1  # by the pass that it begins and does not end

    @property
    def ended(self) -> bool:
        return self.context.lost or self.context.stuck or self.aborted

    @property
    def failure(self) -> str | None:
        if self.context.lost:
            return f"GPU {self.context.rank} was lost"
        if self.context.stuck:
            return f"GPU {self.context.rank} waited too long"
        return "it was made to give up" if self.aborted else None

    @property
    def stuck(self) -> bool:
        return self.context.stuck

    @property
    def usable(self) -> bool:
        return not self.context.lost

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
    monkeypatch.setattr(multi_gpu, "CudaLaunch", PlayedLaunch)


def test_a_lost_gpu_ends_the_request_on_all_after_what_it_had_generated() -> None:
    contexts = [PlayedContext(rank, lost=rank == 2) for rank in range(4)]
    launch = MultiGpuLaunch(contexts, PLAN)  # type: ignore[arg-type]
    assert launch.poll(1.0) == [Token(7, 1)]
    with pytest.raises(DeviceLost, match="GPU 2 was lost"):
        launch.poll(1.0)
    assert launch.ended
    assert all(each.aborted for each in launch._launches)
    assert not any(context.emptied for context in contexts), "the driver would refuse"


def test_a_gpu_that_stands_still_is_named_and_all_start_over_with_empty_mailboxes() -> None:
    contexts = [PlayedContext(rank, stuck=rank == 1) for rank in range(4)]
    launch = MultiGpuLaunch(contexts, PLAN)  # type: ignore[arg-type]
    with pytest.raises(BackendFailure, match="GPU 1 waited too long") as failure:
        launch.wait()
    assert not isinstance(failure.value, DeviceLost)
    assert [context.emptied for context in contexts] == [1, 1, 1, 1]


def test_closing_a_broken_request_frees_what_every_gpu_held() -> None:
    launch = MultiGpuLaunch([PlayedContext(0), PlayedContext(1, lost=True)], PLAN)  # type: ignore[arg-type, list-item]
    launch.close()
    assert all(each.closed for each in launch._launches)


def test_gpus_of_which_not_all_start_agree_on_the_next_pass() -> None:
    contexts = [PlayedContext(rank, refuses=rank == 2) for rank in range(4)]
    with pytest.raises(BackendFailure, match="GPU 2 refused to start"):
        MultiGpuLaunch(contexts, PLAN)  # type: ignore[arg-type]
    assert [context.serial for context in contexts] == [1, 1, 1, 1]
    assert [context.emptied for context in contexts] == [1, 1, 1, 1]


def test_mailboxes_are_left_alone_when_a_gpu_is_lost_while_the_others_start() -> None:
    contexts = [PlayedContext(0, lost=True), PlayedContext(1, refuses=True)]
    with pytest.raises(BackendFailure, match="GPU 1 refused to start"):
        MultiGpuLaunch(contexts, PLAN)  # type: ignore[arg-type]
    assert not any(context.emptied for context in contexts), "the driver would refuse"

"""Which buffers a launch gets and what becomes of them. The GPUs are played; tests/gpu has the tokens."""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends.base import Job
from engine.backends.cuda.kept_caches import KeptCaches, Lease
from engine.backends.prefix_cache import PINNED
from engine.errors import BackendFailure, NoRoom

SIZE = 100
PROMPT = tuple(range(1, 11))


class PlayedDevice:
    """Hands out addresses up to a limit and notes copies."""

    def __init__(self, room: int = 99) -> None:
        self._room, self._next = room, 1000
        self.copies: list[tuple[int, int]] = []

    def activate(self) -> None:
        pass

    def synchronise(self) -> None:
        pass

    def allocate(self, _size: int, *, zero: bool) -> int:
        assert zero
        if self._room == 0:
            raise BackendFailure("cuMemAlloc failed on GPU 0: CUDA_ERROR_OUT_OF_MEMORY")
        self._room -= 1
        self._next += 1
        return self._next

    def free(self, _pointer: int) -> None:
        self._room += 1

    def call(self, name: str, target: int, source: int, _size: int) -> None:
        assert name == "cuMemcpyDtoD"
        self.copies.append((source, target))


def caches(*devices: Any, budget: int = 1000) -> KeptCaches:
    return KeptCaches(devices, SIZE, budget)


def job(*tokens: int, owner: str = "anna") -> Job:
    return Job(tokens, 8, cache_salt=owner)


def lease(kept: KeptCaches, wanted: Job) -> Lease:
    found = kept.lend(wanted)
    assert found is not None
    return found


def test_a_job_without_an_owner_uses_the_models_own_buffer() -> None:
    assert caches(PlayedDevice()).lend(job(*PROMPT, owner="")) is None


def test_a_budget_below_one_buffer_keeps_nothing() -> None:
    assert caches(PlayedDevice(), budget=SIZE - 1).lend(job(*PROMPT)) is None


def test_a_launch_goes_on_wherever_what_is_kept_ends() -> None:
    kept = caches(PlayedDevice())
    first = lease(kept, job(*PROMPT))
    kept.take_back(first, job(*PROMPT), PROMPT)

    again = lease(kept, job(*PROMPT, 11, 12))

    assert again == Lease(first.buffers, 10)


def test_a_sequence_that_stays_kept_is_copied() -> None:
    device = PlayedDevice()
    kept = caches(device)
    long = tuple(range(1, 40))
    first = lease(kept, job(*long))
    kept.take_back(first, job(*long), long)

    branch = lease(kept, job(*long[:6], 77))

    assert branch.first == 6
    assert device.copies == [(first.buffers[0], branch.buffers[0])]
    assert kept.use.sequences == 1


def test_each_gpu_has_a_buffer_of_its_own() -> None:
    kept = caches(PlayedDevice(), PlayedDevice())
    assert len(lease(kept, job(*PROMPT)).buffers) == 2


def test_what_a_broken_launch_leaves_is_not_gone_on_from_and_its_buffer_is_used_again() -> None:
    kept = caches(PlayedDevice())
    broken = lease(kept, job(*PROMPT))
    kept.take_back(broken, job(*PROMPT), ())

    assert lease(kept, job(*PROMPT)) == Lease(broken.buffers, 0)


def test_a_full_memory_gives_up_what_is_kept() -> None:
    kept = caches(PlayedDevice(room=1))
    first = lease(kept, job(*PROMPT))
    kept.take_back(first, job(*PROMPT), PROMPT)

    other = lease(kept, job(5, 6, 7, owner="ben"))

    assert other == Lease(first.buffers, 0)
    assert kept.use.sequences == 0


@pytest.mark.parametrize("room", [0, 1])
def test_a_memory_without_room_on_every_gpu_leaves_the_models_own_buffer(room: int) -> None:
    devices = (PlayedDevice(room=room), PlayedDevice(room=0))
    kept = caches(*devices)

    assert kept.lend(job(*PROMPT)) is None
    assert devices[0]._room == room


def test_rows_have_a_buffer_each_whoever_owns_them() -> None:
    kept = caches(PlayedDevice())
    leases = [kept.lend_row(job(*PROMPT, owner=owner)) for owner in ("", "", "anna")]
    assert len({lease.buffers for lease in leases}) == 3


def test_a_row_beyond_the_budget_waits_for_another_one_to_end() -> None:
    kept = caches(PlayedDevice(), budget=2 * SIZE)
    first, _ = (kept.lend_row(job(*PROMPT)) for _ in range(2))
    with pytest.raises(NoRoom, match="memory for keys and values is full"):
        kept.lend_row(job(*PROMPT))
    kept.take_back_row(first, job(*PROMPT), ())
    kept.lend_row(job(*PROMPT))


def test_a_row_goes_on_from_what_another_one_left_and_makes_room_for_it() -> None:
    kept = caches(PlayedDevice(), budget=2 * SIZE)
    first = kept.lend_row(job(*PROMPT))
    kept.take_back_row(first, job(*PROMPT), PROMPT)
    assert kept.use.sequences == 1
    again = kept.lend_row(job(*PROMPT, 11))
    assert again == Lease(first.buffers, len(PROMPT))
    assert kept.lend_row(job(*PROMPT)).first == 0


def test_a_full_gpu_makes_rows_wait_and_refuses_one_alone_for_good() -> None:
    kept = caches(PlayedDevice(room=1))
    first = kept.lend_row(job(*PROMPT))
    with pytest.raises(NoRoom, match="begins once another one has ended"):
        kept.lend_row(job(*PROMPT))
    kept.take_back_row(first, job(*PROMPT), ())
    with pytest.raises(BackendFailure, match="take a smaller context"):
        caches(PlayedDevice(room=0)).lend_row(job(*PROMPT))


def test_a_full_gpu_is_told_before_any_launch_ends_until_a_row_has_ended() -> None:
    kept = caches(PlayedDevice(room=1))
    first = kept.lend_row(job(*PROMPT))
    kept.require_room()
    with pytest.raises(NoRoom):
        kept.lend_row(job(*PROMPT))
    with pytest.raises(NoRoom, match="GPU's memory is full"):
        kept.require_room()
    kept.take_back_row(first, job(*PROMPT), ())
    kept.require_room()


def test_a_full_budget_is_told_before_any_launch_ends() -> None:
    kept = caches(PlayedDevice(), budget=SIZE)
    kept.lend_row(job(*PROMPT))
    with pytest.raises(NoRoom, match="memory for keys and values is full"):
        kept.require_room()


def test_a_full_gpu_spares_what_is_pinned() -> None:
    kept = caches(PlayedDevice(room=1))
    pinned = job(*PROMPT, owner=PINNED)
    kept.take_back(lease(kept, pinned), pinned, PROMPT)

    assert kept.lend(job(5, 6, 7, owner="ben")) is None
    assert kept.use.sequences == 1

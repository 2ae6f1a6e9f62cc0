"""One sweep a device at a time, in the order in which they were started."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from dashboard.models import DeviceHold, State, SweepRun
from dashboard.models.sweeps import device_of
from dashboard.sweeps import devices, lifecycle, services
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

pytestmark = pytest.mark.django_db


def run_on(name: str, *backends: str) -> SweepRun:
    return factories.run_of(factories.sweep(name, backend=list(backends or ("numpy",))))


def claim(run: SweepRun) -> bool:
    return lifecycle.begin_run(run_id=run.pk)


def test_a_backend_keeps_one_kind_of_device_busy() -> None:
    assert device_of(["numpy", "cpu"]) == "cpu"
    assert device_of(["cuda"]) == "gpu"
    assert device_of(["cuda", "cpu", "cuda"]) == "cpu+gpu"


def test_second_sweep_on_a_device_waits_until_the_first_has_ended() -> None:
    first, second = run_on("a", "numpy"), run_on("b", "cpu")
    assert claim(first)
    assert not claim(second)
    services.cancel(run=first)
    assert claim(second)


def test_sweeps_on_different_devices_run_side_by_side() -> None:
    assert claim(run_on("a", "cpu")) and claim(run_on("b", "cuda"))


def test_earlier_sweep_goes_first_even_if_a_later_one_asks_first() -> None:
    first, second = run_on("a"), run_on("b")
    assert not claim(second)
    assert claim(first)


def test_sweep_on_both_devices_is_not_overtaken_for_ever() -> None:
    cpu, both, gpu = run_on("a", "cpu"), run_on("b", "cpu", "cuda"), run_on("c", "cuda")
    assert claim(cpu)
    assert not claim(both)
    assert not claim(gpu), "it came after one that needs the GPU too"
    services.cancel(run=cpu)
    assert claim(both) and not claim(gpu)


def test_database_itself_refuses_a_second_holder() -> None:
    first, second = run_on("a"), run_on("b")
    assert claim(first)
    with pytest.raises(IntegrityError), transaction.atomic():
        DeviceHold.objects.create(device="cpu", run=second)


def test_when_the_device_is_free_the_next_may_begin() -> None:
    first, second, third = run_on("a"), run_on("b"), run_on("c")
    assert claim(first)
    services.cancel(run=first)
    assert not claim(third)
    assert claim(second)


@pytest.mark.parametrize("end", ["finish", "fail", "cancel"])
def test_whatever_ends_a_run_gives_its_device_back(end: str) -> None:
    run = run_on("a")
    if end == "finish":
        work(run)
    else:
        assert claim(run)
        if end == "fail":
            lifecycle.fail_run(run_id=run.pk, message="it burst")
        else:
            services.cancel(run=run)
    assert not DeviceHold.objects.exists()


def test_queue_shows_who_runs_and_who_waits_for_whom() -> None:
    first, second, third = run_on("a"), run_on("b"), run_on("c", "cuda")
    claim(first)
    cpu, gpu = devices.lines()
    assert (cpu.device, cpu.running) == ("cpu", first)
    assert [(w.run, w.place, w.behind) for w in cpu.waiting] == [(second, 1, first)]
    assert (gpu.device, gpu.running, [w.run for w in gpu.waiting]) == ("gpu", None, [third])
    assert gpu.waiting[0].behind is None


def test_queue_is_empty_when_nothing_is_active() -> None:
    work(run_on("a"))
    assert devices.lines() == []
    assert SweepRun.objects.get().state == State.FINISHED

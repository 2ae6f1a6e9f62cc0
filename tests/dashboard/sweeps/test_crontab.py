"""Schedules: each time is served once, however often Celery is told of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery.schedules import crontab
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from dashboard.errors import SweepBusy
from dashboard.models import Sweep, SweepRun
from dashboard.sweeps import definitions, services
from dashboard.sweeps.crontab import latest_slot, parse_crontab
from tests.dashboard import factories
from tests.dashboard.sweeps.test_services import work

SATURDAY = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def test_latest_slot_is_the_last_time_that_the_crontab_names() -> None:
    assert latest_slot("30 2 * * *", SATURDAY) == datetime(2026, 11, 21, 2, 30, tzinfo=UTC)
    assert latest_slot("30 13 * * *", SATURDAY) == datetime(2026, 11, 20, 13, 30, tzinfo=UTC)
    assert latest_slot("0 12 * * *", SATURDAY) == SATURDAY
    assert latest_slot("*/15 * * * 1-5", SATURDAY) == datetime(2026, 11, 20, 23, 45, tzinfo=UTC)
    assert latest_slot("0 0 29 2 *", SATURDAY) == datetime(2024, 2, 29, tzinfo=UTC)
    assert latest_slot("0 0 * * 0", SATURDAY) == datetime(2026, 11, 15, tzinfo=UTC)


def test_crontab_that_did_not_fall_due_for_years_has_no_slot() -> None:
    assert latest_slot("0 0 29 2 2", SATURDAY) is None


def test_crontab_that_is_none_is_refused() -> None:
    with pytest.raises(ValidationError, match="it needs five"):
        latest_slot("daily", SATURDAY)


@given(
    st.sampled_from(["* * * * *", "*/7 3 * * *", "30 2 * * 1-5", "0 */6 1,15 * *", "5 4 * 2 *", "0 0 * * 0"]),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
)
def test_celery_agrees_that_the_slot_is_due_and_that_none_lies_between(text: str, now: datetime) -> None:
    slot = latest_slot(text, now)
    assert slot is not None and slot <= now
    times = crontab(**parse_crontab(text), nowfun=lambda: slot)
    before = slot - timedelta(minutes=1)
    assert times.is_due(before).is_due or before.minute in times.minute
    after = crontab(**parse_crontab(text), nowfun=lambda: now)
    assert not after.is_due(slot).is_due or slot + timedelta(minutes=1) > now


@pytest.fixture
def sweep(db: None) -> Sweep:
    made = factories.sweep()
    definitions.set_schedule(sweep=made, crontab="0 * * * *")
    return made


def start(sweep: Sweep, now: datetime) -> SweepRun | None:
    sweep.refresh_from_db()
    return services.start_scheduled(sweep=sweep, now=now)


def test_ten_missed_times_start_one_run(sweep: Sweep) -> None:
    first = start(sweep, SATURDAY)
    assert first is not None
    work(first)
    for _ in range(9):  # the other messages that had piled up, each after the run before has ended
        assert start(sweep, SATURDAY + timedelta(minutes=5)) is None
    assert SweepRun.objects.count() == 1


def test_next_time_starts_the_next_run(sweep: Sweep) -> None:
    first = start(sweep, SATURDAY)
    assert first is not None
    work(first)
    assert start(sweep, SATURDAY + timedelta(hours=1)) is not None


def test_time_that_comes_while_the_sweep_runs_is_skipped_for_good(sweep: Sweep) -> None:
    first = start(sweep, SATURDAY)
    assert first is not None
    with pytest.raises(SweepBusy):
        start(sweep, SATURDAY + timedelta(hours=1))
    work(first)
    assert start(sweep, SATURDAY + timedelta(hours=1)) is None


def test_message_that_comes_a_little_early_by_our_clock_is_served(sweep: Sweep) -> None:
    first = start(sweep, SATURDAY)
    assert first is not None
    work(first)
    assert start(sweep, SATURDAY + timedelta(minutes=59, seconds=50)) is not None
    assert SweepRun.objects.count() == 2


def test_sweep_whose_schedule_was_taken_away_is_not_started(sweep: Sweep) -> None:
    definitions.set_schedule(sweep=sweep, crontab="")
    assert start(sweep, SATURDAY) is None

"""Between-run variation: what several runs of one configuration differ by."""

from __future__ import annotations

import pytest

from dashboard.measurements.variation import between_runs
from dashboard.models import Measurement
from engine.measuring.measurement import Verified
from tests.dashboard import factories

pytestmark = pytest.mark.django_db


def runs(*speeds: float, start: int = 0, **kwargs: object) -> Measurement:
    return [factories.stored(tok_s=s, day=day, **kwargs) for day, s in enumerate(speeds, start)][-1]


def test_four_runs_say_nothing() -> None:
    assert between_runs(runs(100, 101, 99, 100)) is None


def test_variation_is_a_share_of_the_level_and_a_step_hardly_counts() -> None:
    newest = runs(*[100, 101] * 6, *[200, 202] * 6)
    found = between_runs(newest)
    assert found is not None
    assert found.runs == 24
    assert 0.004 < found.share < 0.02


def test_runs_that_failed_their_verification_do_not_count() -> None:
    runs(100, 101, 99, 100)
    assert between_runs(runs(50, start=9, verified=Verified("x", False, 1.0))) is None

"""Speed against context length on a run's page."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dashboard.runs.contexts import ContextChart, context_chart, other_contexts
from engine.measuring.measurement import Settings
from engine.sampling import SamplingParams
from tests.dashboard import factories
from tests.dashboard.runs.test_run_page import page_of, text

pytestmark = pytest.mark.django_db


def chart_of(row: Any) -> ContextChart:
    found = context_chart(other_contexts(row), row.pk)
    assert found is not None
    return found


def test_newest_run_at_each_other_context_stands_beside_this_one() -> None:
    factories.stored(context=64, tok_s=1, day=0)
    newest = factories.stored(context=64, tok_s=90, day=3)
    old = factories.stored(context=16, tok_s=100, day=1)
    factories.stored(context=16, tok_s=50, day=2)
    found = chart_of(old)
    assert [(p.context, p.row.pk, p.current) for p in found.points] == [
        (16, old.pk, True),
        (64, newest.pk, False),
    ]


def test_another_number_of_tokens_is_no_other_story() -> None:
    row = factories.stored(context=16)
    factories.stored(context=64, day=1)
    newest = factories.stored(context=64, day=2, settings=Settings(64, 96, 5))
    factories.stored(context=16, day=3, settings=Settings(16, 96, 5))
    assert other_contexts(row) == [row, newest]


def test_other_models_machines_and_samplings_are_left_out() -> None:
    row = factories.stored(context=16)
    factories.stored(context=64, model="another")
    factories.stored(context=64, sampling=SamplingParams(temperature=0.8))
    factories.stored(context=64, devices=(factories.MeasuredDevice("another device", 0.0, 50.0),))
    assert other_contexts(row) == [row]
    assert context_chart([row], row.pk) is None


def test_faster_is_higher_and_longer_is_further_right() -> None:
    row = factories.stored(context=16, tok_s=100)
    factories.stored(context=64, tok_s=90)
    factories.stored(context=256, tok_s=40)
    found = chart_of(row)
    ys = [p.y for p in found.points]
    xs = [p.x for p in found.points]
    assert ys == sorted(ys) and xs == sorted(xs)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.02), "each factor of 4 takes the same room"


def test_ceiling_is_what_the_measured_bandwidth_allows() -> None:
    row = factories.stored(context=16, tok_s=100, mbu=factories.Mbu(None, 0.5))
    factories.stored(context=64, tok_s=90, mbu=factories.Mbu(None, None))
    first, second = chart_of(row).points
    assert (first.ceiling, second.ceiling, second.ceiling_y) == (200.0, None, None)


def test_page_has_the_figures_in_a_table_and_says_where_there_is_one_context(client: Client) -> None:
    row = factories.stored(context=16, tok_s=100)
    assert "measured at one context only" in page_of(client, row)
    other = factories.stored(context=64, tok_s=90)
    page = page_of(client, row)
    assert "64 90.00 225.0" in text(page) and other.get_absolute_url() in page


def test_number_of_queries_does_not_grow_with_the_contexts(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    row = factories.stored(context=1)
    for context in range(2, 30):
        factories.stored(context=context)
    with django_assert_max_num_queries(11):
        client.get(row.get_absolute_url())

"""A run's surroundings: by topic, and what changed while it ran."""

from __future__ import annotations

import pytest
from django.test import Client

from dashboard.runs.environment import conditions, throttle_text, topics
from dashboard.sweeps import services
from tests.dashboard import factories
from tests.dashboard.runs.test_run_page import page_of, text
from tests.dashboard.sweeps.test_services import work


def moment(**gpu: object) -> dict[str, object]:
    return {"gpus": [gpu], "load_average": [1, 2, 3]}


def test_every_fact_stands_under_exactly_one_topic() -> None:
    found = topics({"git": {"sha": "abc"}, "python": {"version": "3.11"}, "moon": "full", "gpus": []})
    assert [(t.title, [name for name, _ in t.facts]) for t in found] == [
        ("Code", ["git.sha"]),
        ("Devices", ["gpus"]),
        ("Libraries", ["python.version"]),
        ("Other", ["moon"]),
    ]


def test_clocks_and_power_are_shown_before_and_after() -> None:
    found = conditions({"state": {"before": moment(sm_mhz=1980, power_w=120), "after": moment(sm_mhz=1755)}})
    rows = {one.name: (one.before, one.after) for one in found}
    assert rows["SM clock, MHz"] == ("1980", "1755")
    assert rows["power, W"] == ("120", "not recorded")
    assert rows["load average"] == ("1, 2, 3", "1, 2, 3")


def test_several_devices_are_told_by_their_number() -> None:
    two = {"gpus": [{"sm_mhz": 1}, {"sm_mhz": 2}]}
    found = conditions({"state": {"before": two, "after": two}})
    assert [one.name for one in found] == ["device 0: SM clock, MHz", "device 1: SM clock, MHz"]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ("0x0", "none"),
        ("0x4", "power cap"),
        (0x28, "hardware slowdown, thermal, software"),
        ("0x10001", "idle, 0x10000"),
        ("Not Active", "Not Active"),
    ],
)
def test_throttling_is_told_in_words(mask: object, words: str) -> None:
    assert throttle_text(mask) == words


@pytest.mark.parametrize("state", [None, "warm", {"before": "cold"}, {"before": {"gpus": ["x"]}}])
def test_a_state_of_another_form_is_not_shown(state: object) -> None:
    assert conditions({"state": state}) == []


@pytest.mark.django_db
def test_page_lists_failed_points_of_the_same_kind_with_their_error(client: Client) -> None:
    run = factories.run_of(factories.sweep(model=["random:test-model"], context=[16], tokens=[32]))
    work(run, fail=frozenset({0}))
    same = page_of(client, factories.stored(model="test-model", context=16))
    other = page_of(client, factories.stored(model="test-model", context=99))
    assert "it burst" in text(same) and run.get_absolute_url() in same
    assert "Points like this that failed" not in other


@pytest.mark.django_db
def test_retry_that_worked_leaves_the_failure_on_the_page(client: Client) -> None:
    run = factories.run_of(factories.sweep(model=["random:test-model"], context=[16], tokens=[32]))
    work(run, fail=frozenset({0}))
    services.retry_failed(run=run)
    work(run)
    assert "it burst" in page_of(client, factories.stored(model="test-model", context=16))

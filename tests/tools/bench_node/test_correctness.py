"""What was not checked, or could not be, is not right: no speed stands on it."""

from __future__ import annotations

from typing import Any

import pytest

from engine.backends import open_backend
from engine.errors import BackendUnavailable
from tools.bench_node import correctness
from tools.bench_node.correctness import Check, against_fewest, against_reference, all_well, passed
from tools.bench_node.plan import DRY, Order, Setup

ORDER = Order("cpu", DRY, (1, 2), {"threads": 1})


@pytest.fixture(autouse=True)
def few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(correctness, "_PROMPT", 9)
    monkeypatch.setattr(correctness, "_TOKENS", 6)


def checks_of(order: Order) -> list[Check]:
    """All that a run asks for, all well."""
    asked = [*order.small_setups(), *order.setups()]
    return [Check(setup.config.name, setup.devices, True, True, "") for setup in asked]


def at_once() -> None:
    """A check may begin."""


def without(checks: list[Check], what: str, devices: int) -> list[Check]:
    return [check for check in checks if (check.what, check.devices) != (what, devices)]


def test_all_is_well_when_all_was_checked_and_right() -> None:
    assert all_well(checks_of(ORDER), ORDER)
    assert all(passed(checks_of(ORDER), ORDER, setup) for setup in ORDER.setups())


def test_nothing_checked_is_not_well() -> None:
    assert not all_well([], ORDER)
    assert not any(passed([], ORDER, setup) for setup in ORDER.setups())


@pytest.mark.parametrize("missing", ["tiny-laneformer", "small-laneformer"])
def test_a_setup_without_one_of_its_two_checks_is_not_passed_and_the_others_are(missing: str) -> None:
    checks = without(checks_of(ORDER), missing, 2)
    assert not all_well(checks, ORDER)
    assert not passed(checks, ORDER, Setup(ORDER.base, 2))
    assert passed(checks, ORDER, Setup(ORDER.base, 1))


def test_right_up_to_rounding_is_enough_for_slices_and_not_for_lanes() -> None:
    plain = [Check(c.what, c.devices, True, "plain" not in c.what, "") for c in checks_of(ORDER)]
    lanes = [Check(c.what, c.devices, True, "plain" in c.what, "") for c in checks_of(ORDER)]
    assert all_well(plain, ORDER)
    assert not all_well(lanes, ORDER)


def test_a_model_that_does_not_open_is_a_failed_check_and_the_next_ones_are_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_breaks(name: str, model: Any, *, devices: int, options: Any) -> Any:
        if devices == 1 and model.config.name == "small-laneformer":
            raise BackendUnavailable("GPU 0 does not answer")
        return open_backend(name, model, devices=devices, options=options)

    monkeypatch.setattr(correctness, "open_backend", one_breaks)
    found = {(check.what, check.devices): check for check in against_reference(ORDER, at_once)}
    broken = found.pop(("small-laneformer", 1))
    assert (broken.right, broken.found) == (False, "GPU 0 does not answer")
    assert len(found) == len(ORDER.small_setups()) - 1
    assert all(check.right for check in found.values())


def test_the_model_on_the_fewest_devices_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    setups = ORDER.setups_of(ORDER.base)
    opened = {s: open_backend("cpu", s.model, devices=s.devices, options=ORDER.options) for s in setups}
    try:
        assert [(c.devices, c.right) for c in against_fewest(opened, at_once)] == [(1, True), (2, True)]
        monkeypatch.setattr("engine.measuring.verification.agrees", lambda *_rows: False)
        assert not any(check.right for check in against_fewest(opened, at_once))
    finally:
        for backend in opened.values():
            backend.close()


def test_where_nothing_opened_nothing_is_checked() -> None:
    assert list(against_fewest({}, at_once)) == []

"""What a node is asked, and what comes first where there may not be time for all."""

from __future__ import annotations

from engine.measuring.point import Point
from engine.models.config import Exchange
from engine.models.probe import plain
from engine.sampling import PLAYGROUND, SamplingParams
from tools.bench_node.plan import FULL, QUICK, Order, Setup

NODE = Order("cuda", FULL, (1, 2, 4, 8))


def points_of(order: Order) -> list[tuple[Setup, Point]]:
    """In the order in which they are measured."""
    first = [point for kind in order.kinds for point in order.first_points(kind)]
    return [*first, *order.further_points()]


def test_the_headline_is_measured_first_and_long_contexts_last() -> None:
    points = [(setup.name, point.context, point.sampling) for setup, point in points_of(NODE)]
    counts = (8, 4, 2, 1)
    assert points[:9] == [
        *((f"laneformer-2b x{count}", 256, SamplingParams()) for count in counts),
        *((f"laneformer-2b x{count}", 256, PLAYGROUND) for count in counts),
        ("laneformer-2b-plain x8", 256, SamplingParams()),
    ]
    assert {context for _, context, _ in points[-8:]} == {4000}
    assert len(set(points)) == len(points) == 2 * (4 + 4) + 2 * 4 + 8


def test_no_point_asks_for_more_tokens_than_the_model_holds() -> None:
    assert {(p.context, p.tokens) for _, p in points_of(NODE)} == {(256, 1000), (4000, 96)}


def test_other_delays_run_on_every_number_of_devices_and_nowhere_without_a_peer() -> None:
    assert [s.name for s in NODE.setups() if "delay0" in s.name] == [
        f"laneformer-2b-delay0 x{count}" for count in (8, 4, 2, 1)
    ]
    assert not [s for s in Order("cuda", FULL, (1,)).setups() if "delay" in s.name]


def test_every_kind_that_is_timed_has_a_small_twin_that_is_checked() -> None:
    small = {(setup.config.name, setup.devices) for setup in NODE.small_setups()}
    assert {(NODE.twin(setup.config), setup.devices) for setup in NODE.setups()} == small


def test_three_tokens_of_the_headline_are_traced_and_nothing_else() -> None:
    traced = [(setup.name, point.trace) for setup, point in points_of(NODE) if point.trace]
    assert [name for name, _ in traced] == ["laneformer-2b x8"]
    assert all(trace and trace.last - trace.first == 3 for _, trace in traced)


def test_the_plain_shape_has_the_same_weights_and_no_lanes() -> None:
    config = plain(NODE.base)
    assert config.parameters == NODE.base.parameters
    assert config.lanes.attention_exchange(0) is Exchange.LOCAL


def test_a_quick_run_leaves_out_the_long_context() -> None:
    assert {p.context for _, p in points_of(Order("cuda", QUICK, (1, 2)))} == {256}

"""What a node is asked, and what comes first where there may not be time for all."""

from __future__ import annotations

from engine.config import Exchange
from engine.probe import plain
from tools.bench_node.plan import FULL, QUICK, Order

NODE = Order("cuda", FULL, (1, 2, 4, 8))


def test_the_headline_is_measured_first_and_long_contexts_last() -> None:
    points = [(setup.name, point.context) for setup, point in NODE.points()]
    assert points[:5] == [
        ("laneformer-2b x8", 256),
        ("laneformer-2b x4", 256),
        ("laneformer-2b x2", 256),
        ("laneformer-2b x1", 256),
        ("laneformer-2b-plain x8", 256),
    ]
    assert {context for _, context in points[-8:]} == {4000}
    assert len(set(points)) == len(points) == 4 + 4 + 2 + 8


def test_no_point_asks_for_more_tokens_than_the_model_holds() -> None:
    assert {(p.context, p.tokens) for _, p in NODE.points()} == {(256, 1000), (4000, 96)}


def test_other_delays_run_where_there_are_most_devices_and_nowhere_without_a_peer() -> None:
    assert [s.name for s in NODE.setups() if "delay" in s.name] == [
        "laneformer-2b-delay0 x8",
        "laneformer-2b-delay1 x8",
    ]
    assert not [s for s in Order("cuda", FULL, (1,)).setups() if "delay" in s.name]


def test_three_tokens_of_the_headline_are_traced_and_nothing_else() -> None:
    traced = [(setup.name, point.trace) for setup, point in NODE.points() if point.trace]
    assert [name for name, _ in traced] == ["laneformer-2b x8"]
    assert all(trace and trace.last - trace.first == 3 for _, trace in traced)


def test_the_plain_shape_has_the_same_weights_and_no_lanes() -> None:
    config = plain(NODE.base)
    assert config.parameters == NODE.base.parameters
    assert config.lanes.attention_exchange(0) is Exchange.NONE


def test_a_quick_run_leaves_out_the_long_context() -> None:
    assert {p.context for _, p in Order("cuda", QUICK, (1, 2)).points()} == {256}

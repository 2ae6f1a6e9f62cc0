"""How many slots an SM asks for at once, as measured."""

from __future__ import annotations

import pytest

from engine.backends.cuda.constants import Layout
from engine.backends.cuda.flight import Flight, flight_of
from engine.backends.cuda.model_header import header
from engine.backends.cuda.monokernel import layout_for
from engine.backends.cuda.options import parse_options
from engine.backends.cuda.together import several_layout
from engine.models.catalogue import open_model

H200_SMS = 132


def layout(name: str, devices: int = 1, **options: int) -> Layout:
    return layout_for(open_model(f"random:{name}"), devices, H200_SMS, parse_options(options))


@pytest.mark.parametrize(
    ("name", "devices", "quiet"),
    [
        ("smollm2-135m", 1, 0),  # always one at a time
        ("qwen2.5-0.5b", 1, 5),
        ("qwen2.5-coder-1.5b", 1, 5),
        ("llama-3.2-1b", 1, 3),
        ("llama-3.1-8b", 1, 3),
        ("llama-3.1-8b", 2, 6),  # all of attention's output
        ("llama-3.1-8b", 4, 3),
        ("laneformer-2b", 1, 3),
        ("qwen3-30b-a3b", 1, 3),
        ("qwen3-30b-a3b", 8, 0),
        ("gpt-oss-20b", 1, 1),  # memory does not idle while attention is computed
        ("gpt-oss-120b", 2, 3),
        ("qwen3-8b:fp8_block", 1, 4),
        ("qwen3-8b:fp8_block", 2, 0),
    ],
)
def test_slots_behind_attention_go_one_at_a_time(name: str, devices: int, quiet: int) -> None:
    made = layout(name, devices)
    assert flight_of(made).quiet == quiet
    assert f"constexpr int QUIET_SLOTS = {quiet};" in header(made)


@pytest.mark.parametrize(
    ("name", "devices", "slots"),
    [
        ("qwen2.5-coder-1.5b", 1, 2),
        ("llama-3.1-8b", 1, 3),
        ("llama-3.1-8b", 2, 2),
        ("qwen3-30b-a3b", 1, 3),
        ("qwen3-30b-a3b", 2, 2),
        ("qwen3-30b-a3b:fp8_block", 1, 2),
        ("gpt-oss-20b", 1, 4),
    ],
)
def test_qkv_is_asked_for_by_how_much_there_is_behind_experts(name: str, devices: int, slots: int) -> None:
    assert flight_of(layout(name, devices)).qkv == slots


@pytest.mark.parametrize(("name", "slots"), [("smollm2-135m", 2), ("llama-3.2-1b", 3), ("llama-3.1-8b", 3)])
def test_the_head_is_asked_for_a_slot_ahead_of_layers(name: str, slots: int) -> None:
    assert flight_of(layout(name)).head == slots


@pytest.mark.parametrize("name", ["qwen3-30b-a3b:fp8_block", "gpt-oss-20b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("requests", [1, 8])
def test_three_slots_of_experts_are_asked_for_at_once(name: str, requests: int) -> None:
    for options, wanted in (({}, 3), ({"expert_slots_in_flight": 2}, 2)):
        made = layout(name, **options)
        assert flight_of(several_layout(made, None, requests) if requests > 1 else made).mlp == wanted


@pytest.mark.parametrize(("devices", "slots"), [(2, 3), (4, 2), (8, 2)])
def test_of_four_gpus_each_asks_for_fewer_slots_of_experts(devices: int, slots: int) -> None:
    made = layout("gpt-oss-120b", devices)
    assert flight_of(made).mlp == slots
    assert flight_of(several_layout(made, None, 2)).mlp == 3


def test_what_only_experts_use_changes_nothing_of_a_dense_kernel() -> None:
    plain, other = (
        header(layout("smollm2-135m", **chosen)) for chosen in ({}, {"expert_slots_in_flight": 7})
    )
    assert plain == other


def test_what_is_chosen_goes_for_all_phases() -> None:
    assert flight_of(layout("llama-3.1-8b", slots_in_flight=2)) == Flight(2, 2, 2, 2, 2, quiet=0)
    chosen = layout("qwen3-30b-a3b", slots_in_flight=1, expert_slots_in_flight=2, quiet_slots=4)
    assert flight_of(chosen) == Flight(1, 1, 2, 1, 1, quiet=4)
    assert flight_of(layout("llama-3.1-8b", quiet_slots=0)).quiet == 0


@pytest.mark.parametrize("requests", [1, 2, 8])
@pytest.mark.parametrize("name", ["llama-3.1-8b", "qwen3-30b-a3b", "qwen3-30b-a3b:fp8_block"])
def test_no_more_is_asked_for_than_the_smallest_ring_holds(name: str, requests: int) -> None:
    """That of several requests keeps a slot free, that with filters is often a slot smaller."""
    made = layout(name, slots_in_flight=20, expert_slots_in_flight=20)
    ring = made.slots_of(filters=True)
    if requests > 1:
        made = several_layout(made, None, requests)
        ring = made.slots - 1
    assert set(flight_of(made).by_phase) == {ring}


@pytest.mark.parametrize(
    ("name", "devices", "requests"),
    [
        ("llama-3.1-8b", 1, 2),
        ("laneformer-2b", 2, 1),
        ("llama-3.1-8b:q8_0", 1, 1),
        ("qwen3-8b:fp8_block", 1, 2),
    ],
)
def test_what_gains_nothing_by_phase_has_one_number_and_is_never_quiet(
    name: str, devices: int, requests: int
) -> None:
    made = layout(name, devices)
    flight = flight_of(several_layout(made, None, requests) if requests > 1 else made)
    assert len(set(flight.by_phase)) == 1
    assert flight.quiet == 0


def test_dense_models_in_fp8_are_quiet_with_one_number() -> None:
    assert set(flight_of(layout("qwen3-8b:fp8_block")).by_phase) == {2}


def test_the_kernel_has_a_number_for_each_phase_and_for_attention() -> None:
    text = header(layout("qwen3-30b-a3b"))
    assert "#define MODEL_SLOTS_IN_FLIGHT {3, 2, 3, 3, 3, 2}\n" in text  # qkv to the head, attention

"""The matrix: what it unfolds into, and what it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from dashboard.sweeps.matrix import (
    AXES,
    MAX_POINTS,
    expand,
    sampling_dict,
    sampling_label,
    validate_matrix,
    validate_repeats,
)
from engine.sampling import SamplingParams
from tests.dashboard.factories import MATRIX

samplings = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_k=st.integers(0, 1000),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 10),
    seed=st.integers(0, 2**64 - 1),
)
matrices = st.fixed_dictionaries(
    {
        "model": st.lists(
            st.sampled_from(["smollm2-135m", "random:tiny-llama:3", "a"]), min_size=1, unique=True
        ),
        "backend": st.lists(st.sampled_from(["numpy", "cpu", "cuda"]), min_size=1, unique=True),
        "context": st.lists(st.integers(1, 1 << 20), min_size=1, max_size=4, unique=True),
        "tokens": st.lists(st.integers(2, 1 << 16), min_size=1, max_size=3, unique=True),
    },
    optional={
        "devices": st.lists(st.integers(1, 64), min_size=1, max_size=2, unique=True),
        "sampling": st.lists(samplings.map(sampling_dict), min_size=1, max_size=2, unique_by=repr),
    },
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*AXES, "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@given(matrices)
def test_expansion_is_the_product_of_the_axes_without_repetition(matrix: dict[str, Any]) -> None:
    specs = expand(matrix)
    expected = 1
    for values in matrix.values():
        expected *= len(values)
    assert len(specs) == len(set(specs)) == expected


@given(matrices)
def test_expansion_survives_the_database(matrix: dict[str, Any]) -> None:
    assert expand(json.loads(json.dumps(matrix))) == expand(matrix)


@given(anything)
def test_validation_answers_every_json_value_with_a_message_or_accepts_it(value: Any) -> None:
    try:
        validate_matrix(value)
    except ValidationError as error:
        assert all(message.endswith((".", "?")) for message in error.messages)
    else:
        assert expand(value)


@given(samplings)
def test_short_form_of_a_sampling_means_the_same(sampling: SamplingParams) -> None:
    assert SamplingParams(**sampling_dict(sampling)) == sampling


def test_points_that_synchronise_in_one_way_stand_together() -> None:
    """A worker has to open its model again to change it."""
    specs = expand({**MATRIX, "backend": ["cpu"], "sync": ["mailbox", "barrier"], "context": [8, 16]})
    assert [(s.sync, s.context) for s in specs] == [
        ("mailbox", 8), ("mailbox", 16), ("barrier", 8), ("barrier", 16)
    ]  # fmt: skip


def test_a_matrix_that_does_not_say_how_to_synchronise_leaves_it_to_the_worker() -> None:
    assert {spec.sync for spec in expand(MATRIX)} == {""}


def test_a_point_may_have_several_streams() -> None:
    specs = expand({**MATRIX, "streams": [1, 4], "context": [8]})
    assert [spec.streams for spec in specs] == [1, 4]
    assert "4 streams" in str(specs[1]) and "stream" not in str(specs[0])


def test_points_on_several_gpus_may_have_several_streams() -> None:
    matrix = {**MATRIX, "backend": ["cuda"], "devices": [1, 2], "streams": [1, 4]}
    validate_matrix(matrix)
    assert {(spec.devices, spec.streams) for spec in expand(matrix)} == {(1, 1), (1, 4), (2, 1), (2, 4)}


def test_last_axis_turns_fastest() -> None:
    specs = expand({**MATRIX, "context": [8, 16], "tokens": [4, 5]})
    assert [(s.context, s.tokens) for s in specs] == [(8, 4), (8, 5), (16, 4), (16, 5)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ["../../etc/passwd"]}, "model is '../../etc/passwd'"),
        ({"model": ["/models/m.gguf"]}, "give a model's name"),
        ({"model": []}, "model is .*at least one value"),
        ({"backend": ["tpu"]}, "backend is 'tpu'; allowed are numpy, cpu, cuda"),
        ({"context": [0]}, "context is 0; allowed are whole numbers from 1"),
        ({"context": [True]}, "context is True"),
        ({"context": ["32"]}, "context is '32'"),
        ({"tokens": [1]}, "tokens is 1; allowed are whole numbers from 2"),
        ({"devices": [1.5]}, "devices is 1.5"),
        ({"sampling": [{"temprature": 1}]}, "sampling has 'temprature'"),
        ({"sampling": [{"temperature": 11}]}, "temperature is 11"),
        ({"sampling": [{"top_k": 1.5}]}, "top_k = 1.5"),
        ({"sampling": ["greedy"]}, "{} for greedy"),
        ({"context": [8, 8]}, "context holds 8 twice"),
        ({"sampling": [{}, {"temperature": 0.0}]}, "twice"),
        ({"backend": ["cpu"], "sync": ["prayer"]}, "sync is 'prayer'; allowed are mailbox, barrier"),
        ({"backend": ["cpu"], "sync": [""]}, "sync is ''"),
        ({"backend": ["cpu"], "sync": []}, "sync is .*at least one value"),
        (
            {"backend": ["cpu", "numpy"], "sync": ["barrier"]},
            "the backend numpy has no choice of it .*leave out sync, or numpy",
        ),
        ({"streams": [0]}, "streams is 0; allowed are whole numbers from 1 to 8"),
        ({"backend": ["cpu"], "streams": [4], "devices": [1, 2]}, "cpu several streams run on one device"),
        ({"backend": ["cuda", "numpy"], "streams": [4], "devices": [2]}, "leave out numpy"),
        ({"lanes": [8]}, "'lanes' is not an axis"),
        ({"context": list(range(1, 300)), "tokens": [2, 3]}, "598 points; a sweep takes at most 500"),
        ({"context": list(range(1, MAX_POINTS + 2))}, "context has 501 values"),
    ],
)
def test_wrong_matrix_is_refused_with_the_axis_and_the_value(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        validate_matrix({**MATRIX, **change})


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        validate_matrix({"model": ["a b"], "backend": ["x"], "context": [0]})
    assert len(caught.value.messages) == 4  # and tokens is missing


@pytest.mark.parametrize("repeats", [0, 4, 101])
def test_repeats_out_of_range_are_refused(repeats: int) -> None:
    with pytest.raises(ValidationError, match=f"repeats is {repeats}; allowed are 5 to 100"):
        validate_repeats(repeats)


@pytest.mark.parametrize(
    ("sampling", "label"),
    [
        (SamplingParams(seed=7, top_k=5), "greedy"),
        (SamplingParams(repetition_penalty=1.1), "greedy penalty=1.1"),
        (SamplingParams(0.8, 40, 0.95, 0.05), "t=0.8 top_k=40 top_p=0.95 min_p=0.05"),
    ],
)
def test_label_names_what_changes_the_draw(sampling: SamplingParams, label: str) -> None:
    assert sampling_label(sampling) == label

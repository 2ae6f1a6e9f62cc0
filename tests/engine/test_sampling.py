from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from engine.errors import RequestError
from engine.sampling import SamplingParams, choose, gumbel, kept_by_filters, penalised

logit_vectors = hnp.arrays(
    np.float32,
    st.integers(1, 200),
    elements=st.floats(-30, 30, width=32, allow_nan=False),
)
sampling_params = st.builds(
    SamplingParams,
    temperature=st.floats(0, 10),
    top_k=st.integers(0, 250),
    top_p=st.floats(1e-6, 1),
    min_p=st.floats(0, 1),
    repetition_penalty=st.floats(0.1, 10),
    seed=st.integers(0, 2**64 - 1),
)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    assert choose(np.array([1, 5, 5, 2], np.float32), SamplingParams(), [], 0) == 1


@given(logit_vectors, sampling_params, st.integers(0, 2**31))
def test_a_choice_is_a_kept_token_and_depends_on_nothing_hidden(logits, params, position) -> None:
    history = [0, len(logits) - 1]

    token = choose(logits, params, history, position)

    assert token == choose(logits.copy(), params, list(history), position)
    if params.temperature > 0:
        scores = penalised(logits, history, params.repetition_penalty) / np.float32(params.temperature)
        assert kept_by_filters(scores, params)[token]


@given(logit_vectors, st.integers(1, 50))
def test_top_k_keeps_exactly_what_reaches_the_kth_largest(logits, k) -> None:
    kept = kept_by_filters(logits, SamplingParams(temperature=1, top_k=k))

    kth = sorted(logits.tolist(), reverse=True)[min(k, len(logits)) - 1]
    assert kept.tolist() == [x >= kth for x in logits.tolist()]


@given(logit_vectors, st.floats(0.01, 0.99))
def test_top_p_keeps_a_smallest_set_that_reaches_it(logits, top_p) -> None:
    kept = kept_by_filters(logits, SamplingParams(temperature=1, top_p=top_p))

    p = stats_softmax(logits)
    slack = 1e-4  # float32 sums
    assert p[kept].sum() >= top_p - slack
    least = p[kept].min()
    assert p[kept & (p > least * (1 + 1e-6))].sum() < top_p + slack


@given(logit_vectors, st.floats(0.01, 1))
def test_min_p_keeps_what_is_probable_enough_beside_the_best(logits, min_p) -> None:
    kept = kept_by_filters(logits, SamplingParams(temperature=1, min_p=min_p))

    ratio = np.exp(logits.astype(np.float64) - logits.max())
    assert kept[ratio >= min_p * (1 + 1e-5)].all()
    assert not kept[ratio < min_p * (1 - 1e-5)].any()


@given(logit_vectors, sampling_params)
def test_filters_always_keep_the_best_token(logits, params) -> None:
    assert kept_by_filters(logits, params)[int(np.argmax(logits))]


@given(
    st.lists(st.sampled_from([-1.5, 0.0, 0.25, 2.0]), min_size=2, max_size=60),
    sampling_params,
)
def test_filters_never_part_equal_tokens(values, params) -> None:
    logits = np.array(values, np.float32)

    kept = kept_by_filters(logits, params)

    for value in set(values):
        assert len(set(kept[logits == np.float32(value)].tolist())) == 1


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.7, seed=2**63 + 5),
        SamplingParams(temperature=1.3, top_k=12, seed=3),
        SamplingParams(temperature=1.0, top_p=0.8, seed=4),
        SamplingParams(temperature=1.0, min_p=0.2, seed=5),
        SamplingParams(temperature=2.0, top_k=20, top_p=0.9, min_p=0.05, seed=6),
    ],
)
def test_draws_over_positions_follow_the_filtered_softmax(params) -> None:
    logits = np.random.default_rng(0).normal(0, 1.5, 40).astype(np.float32)
    draws = 20_000

    counts = Counter(choose(logits, params, [], position) for position in range(draws))

    scores = logits / np.float32(params.temperature)
    kept = np.flatnonzero(kept_by_filters(scores, params))
    assert set(counts) <= set(kept.tolist())
    expected = stats_softmax(scores[kept]) * draws
    common = expected >= 5
    observed = np.array([counts[int(i)] for i in kept])
    result = stats.chisquare(
        observed[common], expected[common] * observed[common].sum() / expected[common].sum()
    )
    assert result.pvalue > 1e-4


def test_draws_over_seeds_follow_the_softmax() -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0], np.float32)

    counts = Counter(
        choose(logits, SamplingParams(temperature=1, seed=s * 0x9E3779B97F4A7C15 % 2**64), [], 9)
        for s in range(20_000)
    )

    result = stats.chisquare([counts[i] for i in range(4)], stats_softmax(logits) * 20_000)
    assert result.pvalue > 1e-4


def test_noise_of_neighbouring_positions_is_uncorrelated() -> None:
    ids = np.arange(50_000)

    correlation = np.corrcoef(gumbel(3, 100, ids), gumbel(3, 101, ids))[0, 1]

    assert abs(correlation) < 5 / np.sqrt(len(ids))


def test_repetition_penalty_moves_every_seen_token_once_towards_less_likely() -> None:
    logits = np.array([2.0, -2.0, 4.0, 1.0], np.float32)

    assert penalised(logits, [0, 1, 1, 0, 0], 2.0).tolist() == [1.0, -4.0, 4.0, 1.0]
    assert logits.tolist() == [2.0, -2.0, 4.0, 1.0]


def test_repetition_penalty_applies_to_greedy_choice() -> None:
    assert choose(np.array([3.0, 2.0], np.float32), SamplingParams(repetition_penalty=2.0), [0], 1) == 1


def test_a_temperature_that_would_overflow_counts_as_greedy() -> None:
    params = SamplingParams(temperature=1e-40, top_p=0.5)

    assert choose(np.array([1.0, 30.0, 29.0], np.float32), params, [], 0) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("top_p", 0.0),
        ("min_p", 1.1),
        ("seed", 2**64),
        ("top_k", -1),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(name, value) -> None:
    with pytest.raises(RequestError, match=name):
        SamplingParams(**{name: value})


def stats_softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores.astype(np.float64) - float(scores.max()))
    return weights / weights.sum()

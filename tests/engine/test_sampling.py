from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from engine.errors import RequestError
from engine.sampling import (
    WEIGHT_BITS,
    SamplingParams,
    adjust_logits,
    choose,
    gumbel,
    kept_by_filters,
    least_weight,
    penalise,
    weights,
)
from tests.nightly import at_night

RECORDED_WEIGHTS = [1099511627776, 994879275008, 404487733248, 42632691712, 82300472, 2266, 2, 0]
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
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
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
        scores = adjust_logits(logits, params, history, []) / np.float32(params.temperature)
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


@pytest.mark.slow
@pytest.mark.parametrize("draws", [2_000, at_night(20_000)])
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
def test_draws_over_positions_follow_the_filtered_softmax(params: SamplingParams, draws: int) -> None:
    logits = np.random.default_rng(0).normal(0, 1.5, 40).astype(np.float32)

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


@pytest.mark.slow
@pytest.mark.parametrize("draws", [4_000, at_night(20_000)])
def test_draws_over_seeds_follow_the_softmax(draws: int) -> None:
    logits = np.array([2.0, 1.0, 0.0, -1.0], np.float32)

    counts = Counter(
        choose(logits, SamplingParams(temperature=1, seed=s * 0x9E3779B97F4A7C15 % 2**64), [], 9)
        for s in range(draws)
    )

    result = stats.chisquare([counts[i] for i in range(4)], stats_softmax(logits) * draws)
    assert result.pvalue > 1e-4


def test_noise_of_neighbouring_positions_is_uncorrelated() -> None:
    ids = np.arange(50_000)

    correlation = np.corrcoef(gumbel(3, 100, ids), gumbel(3, 101, ids))[0, 1]

    assert abs(correlation) < 5 / np.sqrt(len(ids))


def test_repetition_penalty_moves_every_seen_token_once_towards_less_likely() -> None:
    logits = np.array([2.0, -2.0, 4.0, 1.0], np.float32)

    assert penalise(logits, [0, 1, 1, 0, 0], 2.0).tolist() == [1.0, -4.0, 4.0, 1.0]
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


def test_frequency_and_presence_count_what_was_sampled_and_not_the_prompt() -> None:
    params = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25)
    logits = np.array([2.0, 2.0, 2.0, -1.0], np.float32)

    assert adjust_logits(logits, params, [0, 0, 1, 3, 3], [1, 3, 3]).tolist() == [2.0, 1.25, 2.0, -2.25]
    assert logits.tolist() == [2.0, 2.0, 2.0, -1.0]


def test_a_bias_is_added_after_the_penalties() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias={2: 3.0, 0: -1.0})

    assert adjust_logits(np.array([4.0, 1.0, 4.0], np.float32), params, [0, 2], []).tolist() == [
        1.0,
        1.0,
        5.0,
    ]


def test_a_bias_is_kept_in_one_form_whatever_it_was_given_as() -> None:
    pairs = ((3, -1.0), (7, 2.5))
    for form in ({7: 2.5, 3: -1}, {"7": 2.5, "3": -1}, [[3, -1], [7, 2.5]], pairs):
        assert SamplingParams(logit_bias=form).logit_bias == pairs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({-1: 0.5}, "token id -1"),
        ({3: 101}, "101.0 for the token id 3"),
        ({3: float("nan")}, "nan"),
        (3, "maps token ids"),
        ({"x": 1}, "maps token ids"),
        (dict.fromkeys(range(1025), 1.0), "at most 1024"),
    ],
)
def test_a_bias_that_is_none_is_refused_in_one_sentence(given, words) -> None:
    with pytest.raises(RequestError, match=words):
        SamplingParams(logit_bias=given)


# --- the rule's arithmetic ----------------------------------------------------------------------------


@given(logit_vectors)
def test_weights_are_the_exponential_in_fixed_point(logits) -> None:
    exact = np.exp(logits.astype(np.float64) - float(logits.max())) * 2.0**WEIGHT_BITS

    found = weights(logits).astype(np.float64)

    assert np.all(np.abs(found - exact) <= 4e-6 * exact + 1)
    assert weights(logits).max() == 1 << WEIGHT_BITS


def test_weights_do_not_depend_on_where_they_are_computed() -> None:
    """Bits that a port of the rule must reproduce."""
    scores = np.array([0.0, -0.1, -1.0, -3.25, -9.5, -20.0, -27.0, -28.0], np.float32)

    assert weights(scores).tolist() == RECORDED_WEIGHTS


@pytest.mark.slow
@given(logit_vectors, sampling_params, st.integers(0, 2**31))
def test_drawing_again_above_a_rejected_candidate_finds_the_same_token(logits, params, position) -> None:
    """The way that needs no sorting (the module's docstring), as the kernels go."""
    assume(params.temperature > 0)

    assert drawn_in_rounds(logits, params, position)[0] == choose(logits, params, [], position)


@pytest.mark.slow
def test_usual_settings_seldom_need_a_second_round() -> None:
    generator = np.random.default_rng(5)
    for params in (
        SamplingParams(temperature=0.2, top_p=0.95),
        SamplingParams(temperature=0.8, top_p=0.95, seed=3),
        SamplingParams(temperature=0.8, top_k=50, seed=4),
    ):
        rounds = []
        for position in range(60):  # a language model's logits fall off about like this
            logits = (18 - 2.2 * np.log1p(np.arange(5000)) + generator.normal(0, 1, 5000)).astype(np.float32)
            rounds.append(drawn_in_rounds(logits, params, position)[1])
        assert np.mean(rounds) < 1.5, params
        assert max(rounds) <= 6


def drawn_in_rounds(logits: np.ndarray, params: SamplingParams, position: int) -> tuple[int, int]:
    """The token by candidates, sums above them and a rising floor; and how many candidates it took."""
    scores = logits / np.float32(params.temperature)
    weight = [int(w) for w in weights(scores)]
    noisy = scores + gumbel(params.seed, position, np.arange(len(scores)))
    top_k = params.top_k if 0 < params.top_k < len(scores) else len(scores)
    in_top_k = [int(np.count_nonzero(scores > s)) < top_k for s in scores]
    total = sum(w for w, inside in zip(weight, in_top_k, strict=True) if inside)
    floor, rounds = -np.inf, 0
    while True:
        rounds += 1
        candidate = int(np.argmax(np.where(scores > floor, noisy, -np.inf)))
        above = scores > scores[candidate]
        mass = sum(w for w, over in zip(weight, above, strict=True) if over)
        if (
            np.count_nonzero(above) < top_k
            and (params.top_p == 1 or float(mass) < float(total) * float(np.float32(params.top_p)))
            and weight[candidate] >= least_weight(params.min_p)
        ):
            return candidate, rounds
        floor = scores[candidate]


def former_choice(logits: np.ndarray, params: SamplingParams, position: int) -> int:
    """The rule before sums were integers: float32 sums over a sorted softmax."""
    scores = logits / np.float32(params.temperature)
    kept = np.ones(len(scores), np.bool_)
    if 0 < params.top_k < len(scores):
        kept = scores >= np.sort(scores)[-params.top_k]
    weight = np.exp(scores - scores.max(), dtype=np.float32)
    if params.top_p < 1:
        descending = np.sort(weight[kept])[::-1]
        sums = np.cumsum(descending / weight[kept].sum(dtype=np.float32), dtype=np.float32)
        kept &= weight >= descending[np.count_nonzero(sums[:-1] < np.float32(params.top_p))]
    kept &= weight >= np.float32(params.min_p)
    ids = np.flatnonzero(kept)
    return int(ids[np.argmax(scores[ids] + gumbel(params.seed, position, ids))])


FILTERS = [
    SamplingParams(temperature=0.2, top_p=0.95, seed=1),
    SamplingParams(temperature=0.8, top_p=0.9, seed=2),
    SamplingParams(temperature=0.8, top_k=50, seed=3),
    SamplingParams(temperature=0.8, top_k=50, top_p=0.95, seed=4),
    SamplingParams(temperature=1.0, min_p=0.05, seed=5),
    SamplingParams(temperature=1.5, top_k=40, top_p=0.8, min_p=0.01, seed=6),
]


@pytest.mark.slow
@pytest.mark.parametrize("params", FILTERS, ids=repr)
def test_tokens_are_those_of_the_former_rule(params) -> None:
    generator = np.random.default_rng(11)
    for position in range(150):
        logits = generator.normal(0, 3, 3000).astype(np.float32)
        assert choose(logits, params, [], position) == former_choice(logits, params, position)


@pytest.mark.parametrize("params", FILTERS, ids=repr)
def test_filters_keep_what_the_processors_of_transformers_keep(params) -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    chain = [
        processors.TemperatureLogitsWarper(params.temperature),
        *([processors.TopKLogitsWarper(params.top_k)] if params.top_k else []),
        *([processors.TopPLogitsWarper(params.top_p)] if params.top_p < 1 else []),
    ]
    generator = np.random.default_rng(12)
    for _ in range(30):
        logits = generator.normal(0, 3, 2000).astype(np.float32)
        theirs = torch.from_numpy(logits.copy())[None]
        for processor in chain:
            theirs = processor(None, theirs)
        if params.min_p:  # there it is relative to what is left; here, as in llama.cpp, to the best: the same
            theirs = processors.MinPLogitsWarper(params.min_p)(None, theirs)
        kept = kept_by_filters(logits / np.float32(params.temperature), params)
        assert kept.tolist() == torch.isfinite(theirs[0]).tolist()


def test_the_repetition_penalty_is_that_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    processors = pytest.importorskip("transformers.generation.logits_process")
    logits = np.random.default_rng(13).normal(0, 3, 500).astype(np.float32)
    history = [1, 5, 5, 77, 499]

    theirs = processors.RepetitionPenaltyLogitsProcessor(1.3)(
        torch.tensor([history]), torch.from_numpy(logits.copy())[None]
    )

    np.testing.assert_allclose(penalise(logits, history, 1.3), theirs[0].numpy(), rtol=1e-6)


def stats_softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores.astype(np.float64) - float(scores.max()))
    return weights / weights.sum()

"""How the next token is chosen: the table of options, and the rule that every backend follows.

The rule, over the logits of one position. Numbers are float32, each operation is rounded by itself (nothing
is fused), and sums are integers, so that any number of threads, SMs and GPUs agree to the bit on equal
logits.

1. Repetition penalty: a logit of an id in the sequence so far is divided by it if positive, else multiplied.
2. Frequency and presence: ids that were sampled (not those of the prompt) lose
   `frequency_penalty * count + presence_penalty`.
3. Logit bias is added. Temperature 0 ends here: the largest value wins, the lowest id among equals.
4. Values are divided by the temperature; these are the scores. `top` is the largest.
5. The weight of a score is floor(2^40 * exp(score - top)), an integer, by the one exponential below.
6. top-k keeps a token if fewer than k tokens score more than it.
7. top-p, among what top-k kept: a token stays if the weights of those that score more sum up to less than
   top_p of the sum of all, compared in float64 as `float64(above) < float64(all) * float64(top_p)`.
8. min-p keeps weights of at least floor(2^40 * min_p).
9. Of what is kept, the largest score + Gumbel noise wins, the lowest id among equals. The noise depends on
   the seed, the position and the token id alone.

The exponential: y = (score - top) * LOG2_E, not below -41; n = y rounded to the nearest integer, halves to
even; f = y - n; 2^f by Horner's rule on EXP2_COEFFICIENTS, multiplications and additions apart; the weight is
2^f * 2^(n + 40) without its fraction.

No backend has to sort for it. Each filter keeps everything above some score. So take the best perturbed
candidate of all tokens; count what scores more than it, and sum those weights; if the filters keep it, it is
the answer; if not, they keep nothing that scores less either: draw again among what scores more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.philox import uniforms

MOST_BIASES = 1024
BIAS_LIMIT = 100.0
"""As OpenAI's API has it."""
LOG2_E = np.float32(1.4426950216293335)
EXP2_COEFFICIENTS: tuple[np.float32, ...] = tuple(
    np.float32(c)
    for c in (
        0.00015461447765119374,
        0.0013390866806730628,
        0.009618056938052177,
        0.055503569543361664,
        0.24022650718688965,
        0.6931471824645996,
        1.0,
    )
)
"""Of 2^f for f in [-0.5, 0.5], the highest power first; within 1e-7 of it."""
WEIGHT_BITS = 40
"""A weight of 1, the best token's, is 2^40: 2^20 of them still fit in 63 bits."""


@dataclass(frozen=True, slots=True)
class FormRange:
    """Values that a form offers: the number field takes `low` to `high`, the slider ends at `slider_high`."""

    low: float
    high: float
    step: float
    slider_high: float
    slider_step: float


@dataclass(frozen=True, slots=True)
class Option:
    """One sampling option. Flags, checks, form fields, labels and exported code derive from it."""

    name: str
    """As every JSON of ours and OpenAI's API names it."""
    default: float
    whole: bool
    low: float
    high: float
    """Bounds of what is allowed, both included."""
    label: str
    help: str
    """What it does, beside a form's field or a flag."""
    short: str = ""
    """Its name in the one-line summary of a measurement; empty where speed does not depend on it."""
    filters: bool = False
    """Removes tokens before a draw: greedy ignores it."""
    openai: bool = False
    """OpenAI's own API has it, under the same name."""
    form: FormRange | None = None

    @property
    def kind(self) -> type[int] | type[float]:
        return int if self.whole else float


def _option(low: float, high: float, label: str, help: str, **others: Any) -> Mapping[str, Any]:
    """What `OPTIONS` takes from a field of SamplingParams beside its name, type and default."""
    return {"low": low, "high": high, "label": label, "help": help, **others}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the next token is chosen. The defaults are greedy.

    temperature 0 is greedy (lowest id wins a tie) and ignores the filters. Raises RequestError if a value is
    out of range.
    """

    temperature: float = field(
        default=0.0,
        metadata=_option(
            *(0.0, 10.0, "Temperature", "0 always takes the likeliest token"),
            short="t",
            openai=True,
            form=FormRange(0, 2, 0.01, 2, 0.05),
        ),
    )
    """Below 1e-4 it becomes 0: logits divided by less would overflow float32."""
    top_k: int = field(
        default=0,
        metadata=_option(
            *(0, 1 << 20, "Top k", "Keeps the k likeliest tokens; 0 keeps all"),
            short="top_k",
            filters=True,
            form=FormRange(0, 1000, 1, 200, 1),
        ),
    )
    top_p: float = field(
        default=1.0,
        metadata=_option(
            *(0.0, 1.0, "Top p", "Keeps the likeliest that together have this probability; 1 keeps all"),
            short="top_p",
            filters=True,
            openai=True,
            form=FormRange(0.01, 1, 0.01, 1, 0.01),
        ),
    )
    min_p: float = field(
        default=0.0,
        metadata=_option(
            *(0.0, 1.0, "Min p", "Drops what is less likely than this part of the likeliest token"),
            short="min_p",
            filters=True,
            form=FormRange(0, 1, 0.01, 1, 0.01),
        ),
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata=_option(
            *(0.1, 10.0, "Repetition penalty", "Above 1, tokens of the text so far become less likely"),
            short="penalty",
            form=FormRange(0.5, 2, 0.01, 2, 0.01),
        ),
    )
    frequency_penalty: float = field(
        default=0.0,
        metadata=_option(
            *(-2.0, 2.0, "Frequency penalty", "Times how often a token was already sampled; 0 is off"),
            short="frequency",
            openai=True,
            form=FormRange(-2, 2, 0.01, 2, 0.05),
        ),
    )
    presence_penalty: float = field(
        default=0.0,
        metadata=_option(
            *(-2.0, 2.0, "Presence penalty", "For every token that was already sampled; 0 is off"),
            short="presence",
            openai=True,
            form=FormRange(-2, 2, 0.01, 2, 0.05),
        ),
    )
    seed: int = field(
        default=0,
        metadata=_option(
            *(0, 2**64 - 1, "Seed", "The same seed gives the same tokens; drawn if left out"), openai=True
        ),
    )
    """64 bits, unsigned."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """What is added to the logits of single ids, by ascending id. A mapping is taken too, as JSON has it."""

    def __post_init__(self) -> None:
        if self.logit_bias != ():  # nearly every request leaves it out
            object.__setattr__(self, "logit_bias", _bias_pairs(self.logit_bias))
        for option in OPTIONS:
            value = getattr(self, option.name)
            if not option.low <= value <= option.high:  # also refuses NaN
                raise RequestError(f"{option.name} is {value}; allowed are {option.low:g} to {option.high:g}")
        if self.top_p == 0.0:
            raise RequestError("top_p is 0; it must be above 0 (1 keeps every token)")
        if self.temperature < 1e-4:
            object.__setattr__(self, "temperature", 0.0)


def _bias_pairs(given: object) -> tuple[tuple[int, float], ...]:
    """Raises RequestError if `given` is not what SamplingParams.logit_bias takes."""
    pairs = given.items() if isinstance(given, Mapping) else given
    try:
        found = {int(token): float(bias) for token, bias in cast("Sequence[tuple[Any, Any]]", pairs)}
    except (TypeError, ValueError):
        raise RequestError(f"logit_bias is {given!r}; it maps token ids to numbers") from None
    if len(found) > MOST_BIASES:
        raise RequestError(f"logit_bias has {len(found)} ids; at most {MOST_BIASES} are taken")
    for token, bias in found.items():
        if not 0 <= token < 2**31:
            raise RequestError(f"logit_bias names the token id {token}; allowed are 0 to {2**31 - 1}")
        if not -BIAS_LIMIT <= bias <= BIAS_LIMIT:
            allowed = f"-{BIAS_LIMIT:g} to {BIAS_LIMIT:g}"
            raise RequestError(f"logit_bias is {bias} for the token id {token}; allowed are {allowed}")
    return tuple(sorted(found.items()))


OPTIONS: tuple[Option, ...] = tuple(
    Option(f.name, cast("float", f.default), f.type == "int", **f.metadata)
    for f in fields(SamplingParams)
    if f.metadata
)
"""Those that are one number, in the order in which they act; logit_bias stands beside them."""
PLAYGROUND = SamplingParams(temperature=0.2, top_p=0.95)
"""What the playground starts with. Benchmarks measure it beside greedy."""


def choose(
    logits: NDArray[np.float32],
    params: SamplingParams,
    history: Sequence[int],
    position: int,
    sampled: Sequence[int] = (),
) -> int:
    """The id of the next token.

    `logits` [vocab]; `history` are the ids of the sequence so far, prompt included; `sampled` are those of
    them that were generated; `position` is the index that the new token will have in the sequence.
    """
    values = adjust_logits(logits, params, history, sampled)
    if params.temperature == 0:
        return int(np.argmax(values))
    scores = values / np.float32(params.temperature)
    kept = np.flatnonzero(kept_by_filters(scores, params))
    return int(kept[np.argmax(scores[kept] + gumbel(params.seed, position, kept))])


def adjust_logits(
    logits: NDArray[np.float32], params: SamplingParams, history: Sequence[int], sampled: Sequence[int]
) -> NDArray[np.float32]:
    """Logits after penalties and bias. Returns `logits` itself if there is nothing to do."""
    values = penalise(logits, history, params.repetition_penalty)
    if sampled and (params.frequency_penalty or params.presence_penalty):
        ids, counts = np.unique(np.asarray(sampled, np.int64), return_counts=True)
        lost = np.float32(params.frequency_penalty) * counts.astype(np.float32)
        values = values.copy()
        values[ids] -= lost + np.float32(params.presence_penalty)
    if params.logit_bias:
        values = values.copy()
        for token, bias in params.logit_bias:
            values[token] += np.float32(bias)
    return values


def penalise(logits: NDArray[np.float32], history: Sequence[int], penalty: float) -> NDArray[np.float32]:
    """Logits of the ids in `history` moved towards less likely: divided if positive, else multiplied.

    Keskar et al., "CTRL", 2019, section 4.1. Returns `logits` itself if there is nothing to do.
    """
    if penalty == 1.0 or not history:
        return logits
    seen = np.unique(np.asarray(history, np.int64))
    factor = np.float32(penalty)
    moved = logits.copy()
    moved[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    return moved


def weights(scores: NDArray[np.float32]) -> NDArray[np.uint64]:
    """floor(2^40 * exp(score - the largest score)), by the rule's own exponential: [vocab] to [vocab]."""
    y = np.maximum((scores - scores.max()) * LOG2_E, np.float32(-WEIGHT_BITS - 1))
    n = np.rint(y)
    f = y - n
    power = np.full_like(f, EXP2_COEFFICIENTS[0])
    for coefficient in EXP2_COEFFICIENTS[1:]:
        power = power * f + coefficient
    scaled: NDArray[np.uint64] = np.ldexp(power, n.astype(np.int32) + WEIGHT_BITS).astype(np.uint64)
    return scaled


def least_weight(min_p: float) -> int:
    """The smallest weight that min-p keeps."""
    return int(float(np.float32(min_p)) * 2.0**WEIGHT_BITS)


def kept_by_filters(scores: NDArray[np.float32], params: SamplingParams) -> NDArray[np.bool_]:
    """Which tokens may be drawn, [vocab]. Tokens of equal score share one fate."""
    kept = np.ones(scores.shape, np.bool_)
    vocab = len(scores)
    if 0 < params.top_k < vocab:
        kept = scores >= np.partition(scores, vocab - params.top_k)[vocab - params.top_k]
    if params.top_p == 1.0 and params.min_p == 0.0:
        return kept
    weight = weights(scores)
    if params.top_p < 1.0:
        kept &= scores >= _nucleus_threshold(scores[kept], weight[kept], params.top_p)
    if params.min_p > 0.0:
        kept &= weight >= np.uint64(least_weight(params.min_p))
    return kept


def _nucleus_threshold(scores: NDArray[np.float32], weight: NDArray[np.uint64], top_p: float) -> np.float32:
    """The smallest of `scores` that top-p keeps."""
    order = np.argsort(-scores, kind="stable")
    descending = scores[order]
    sums = np.cumsum(weight[order], dtype=np.uint64)
    above = (sums - weight[order]).astype(np.float64)
    inside = above < sums[-1].astype(np.float64) * np.float64(np.float32(top_p))
    # Of equal scores the first has only larger ones before it: if it stays, so do they all.
    return np.float32(descending[np.flatnonzero(inside)[-1]])


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Standard Gumbel noise for ascending token ids: argmax of score + noise is a draw from softmax."""
    return -np.log(-np.log(uniforms(seed, position, ids)))

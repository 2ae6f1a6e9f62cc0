"""How the next token is chosen: the table of options, and the rule that every backend follows.

The rule, in float32 over the vocabulary: repetition penalty, temperature, top-k, top-p, min-p, then one
Gumbel-max draw whose random numbers depend on the seed, the position and the token id alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.philox import uniforms


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

    Order: repetition penalty (on every token id already in the sequence), temperature, top-k, top-p,
    min-p, then one draw. temperature 0 is greedy (lowest id wins a tie) and ignores the filters.
    Raises RequestError if a value is out of range.
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
    seed: int = field(
        default=0,
        metadata=_option(
            *(0, 2**64 - 1, "Seed", "The same seed gives the same tokens; drawn if left out"), openai=True
        ),
    )
    """64 bits, unsigned."""

    def __post_init__(self) -> None:
        for option in OPTIONS:
            value = getattr(self, option.name)
            if not option.low <= value <= option.high:  # also refuses NaN
                raise RequestError(f"{option.name} is {value}; allowed are {option.low:g} to {option.high:g}")
        if self.top_p == 0.0:
            raise RequestError("top_p is 0; it must be above 0 (1 keeps every token)")
        if self.temperature < 1e-4:
            object.__setattr__(self, "temperature", 0.0)


OPTIONS: tuple[Option, ...] = tuple(
    Option(f.name, cast("float", f.default), f.type == "int", **f.metadata) for f in fields(SamplingParams)
)
"""In the order in which they act."""
PLAYGROUND = SamplingParams(temperature=0.2, top_p=0.95)
"""What the playground starts with. Benchmarks measure it beside greedy."""


def choose(logits: NDArray[np.float32], params: SamplingParams, history: Sequence[int], position: int) -> int:
    """The id of the next token.

    `logits` [vocab]; `history` are the ids of the sequence so far, prompt included; `position` is the
    index that the new token will have in the sequence. Temperature 0 takes the largest logit; the
    lowest id wins a tie.
    """
    scores = penalised(logits, history, params.repetition_penalty)
    if params.temperature == 0:
        return int(np.argmax(scores))
    scores = scores / np.float32(params.temperature)
    kept = np.flatnonzero(kept_by_filters(scores, params))
    return int(kept[np.argmax(scores[kept] + gumbel(params.seed, position, kept))])


def penalised(logits: NDArray[np.float32], history: Sequence[int], penalty: float) -> NDArray[np.float32]:
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


def kept_by_filters(scores: NDArray[np.float32], params: SamplingParams) -> NDArray[np.bool_]:
    """Which tokens may be drawn, [vocab]. Each filter is a threshold, so that equals share one fate.

    top-k keeps what is no less than the k-th largest score. top-p (Holtzman et al. 2019) walks down
    the softmax of what is left while the probability before a token is below top_p. min-p keeps what
    is at least min_p times as probable as the best.
    """
    kept = np.ones(scores.shape, np.bool_)
    vocab = len(scores)
    if 0 < params.top_k < vocab:
        kept = scores >= np.partition(scores, vocab - params.top_k)[vocab - params.top_k]
    weights = np.exp(scores - scores.max(), dtype=np.float32)
    if params.top_p < 1.0:
        kept &= weights >= _nucleus_threshold(weights[kept], params.top_p)
    if params.min_p > 0.0:
        kept &= weights >= np.float32(params.min_p)
    return kept


def _nucleus_threshold(weights: NDArray[np.float32], top_p: float) -> np.float32:
    """The smallest of the unnormalised probabilities `weights` that top-p keeps."""
    descending = np.sort(weights)[::-1]
    cumulative = np.cumsum(descending / weights.sum(dtype=np.float32), dtype=np.float32)
    count = 1 + np.count_nonzero(cumulative[:-1] < np.float32(top_p))
    return np.float32(descending[count - 1])


def gumbel(seed: int, position: int, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """Standard Gumbel noise for ascending token ids: argmax of score + noise is a draw from softmax."""
    return -np.log(-np.log(uniforms(seed, position, ids)))

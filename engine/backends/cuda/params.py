"""A launch's sampling as the kernels take it."""

from __future__ import annotations

from engine.backends.cuda.contract import Bias, Sampling
from engine.sampling import SamplingParams, least_weight


def biases_of(params: SamplingParams) -> bytes:
    """Those of a list of Bias; one that nobody reads if there is none."""
    pairs = params.logit_bias or ((0, 0.0),)
    return b"".join(bytes(Bias(*pair)) for pair in pairs)


def sampling_of(params: SamplingParams, vocab: int) -> Sampling:
    """How the kernels choose tokens."""
    top_k = params.top_k if params.top_k < vocab else 0
    filters = top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
    penalties = (params.repetition_penalty != 1.0, params.frequency_penalty, params.presence_penalty)
    return Sampling(
        least_weight(params.min_p),
        params.temperature,
        params.top_p,
        params.repetition_penalty,
        params.frequency_penalty,
        params.presence_penalty,
        top_k,
        params.seed & 0xFFFFFFFF,
        params.seed >> 32,
        int(params.temperature > 0 and filters),
        int(any(penalties) or bool(params.logit_bias)),
    )

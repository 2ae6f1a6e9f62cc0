"""A backend refuses a model whose arithmetic it has not, and never computes it wrongly."""

from dataclasses import replace

import pytest

from engine.backends.base import require_features
from engine.errors import BackendUnavailable
from engine.models.config import Activation, Experts, Feature, ModelConfig
from engine.models.rope import FactorScaling, Rope, YarnScaling

PLAIN = ModelConfig("m", 64, 2, 4, 2, 16, 128, 100, 32)
SWITCHED = {
    Feature.QKV_BIAS: replace(PLAIN, qkv_bias=True),
    Feature.QK_NORM: replace(PLAIN, qk_norm=True),
    Feature.LAYER_ROTATION: replace(PLAIN, layer_ropes=(Rope(), None)),
    Feature.ROTATION_AMPLITUDE: replace(PLAIN, rope=Rope(scaling=YarnScaling(4.0, 32, 1.14))),
    Feature.POST_NORMS: replace(PLAIN, post_norms=True),
    Feature.GELU: replace(PLAIN, activation=Activation.GELU_TANH),
    Feature.EMBEDDING_SCALE: replace(PLAIN, embedding_scale=8.0),
    Feature.ATTENTION_SCALE: replace(PLAIN, attention_scale=0.1),
    Feature.ATTENTION_CAP: replace(PLAIN, attention_cap=50.0),
    Feature.LOGIT_CAP: replace(PLAIN, logit_cap=30.0),
    Feature.OUT_BIAS: replace(PLAIN, out_bias=True),
    Feature.SINKS: replace(PLAIN, sinks=True),
    Feature.CLAMPED_SWIGLU: replace(PLAIN, activation=Activation.CLAMPED_SWIGLU, swiglu_limit=7.0),
    Feature.EXPERTS: replace(PLAIN, experts=Experts(count=4, chosen=2)),
}


def test_a_plain_llama_needs_no_feature() -> None:
    assert PLAIN.features == frozenset()
    assert replace(PLAIN, layer_ropes=(Rope(), Rope())).features == frozenset()


@pytest.mark.parametrize("feature", list(Feature))
def test_each_field_of_the_arithmetic_is_a_feature(feature: Feature) -> None:
    assert SWITCHED[feature].features == {feature}


def test_an_amplitude_of_factors_for_each_pair_is_a_feature() -> None:
    rope = Rope(scaling=FactorScaling((1.0,) * 8, 1.2))

    assert replace(PLAIN, rope=rope).features == {Feature.ROTATION_AMPLITUDE}


def test_a_backend_names_the_family_and_what_it_lacks() -> None:
    config = replace(PLAIN, family="qwen2", qkv_bias=True)

    with pytest.raises(BackendUnavailable, match=r"family qwen2 yet: it lacks biases on queries.*numpy"):
        require_features(config, {Feature.QK_NORM}, "cpu")

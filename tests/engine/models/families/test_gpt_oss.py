"""GPT-OSS's configuration as it is published, and what is refused."""

from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.models.checkpoints.fields import Fields
from engine.models.config import Activation, Experts, ModelConfig
from engine.models.families import family_of
from engine.models.rope import Rope, YarnScaling, inverse_frequencies

PUBLISHED: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "attention_bias": True,
    "eos_token_id": 200002,
    "experts_per_token": 4,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 2880,
    "initial_context_length": 4096,
    "intermediate_size": 2880,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "max_position_embeddings": 131072,
    "model_type": "gpt_oss",
    "num_attention_heads": 64,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 24,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "quantization_config": {"quant_method": "mxfp4"},
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 32.0,
        "original_max_position_embeddings": 4096,
        "rope_type": "yarn",
        "truncate": False,
    },
    "rope_theta": 150000,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "tie_word_embeddings": False,
    "vocab_size": 201088,
}
"""openai/gpt-oss-20b's config.json but for entries that say nothing about the arithmetic."""


def read(**changes: Any) -> ModelConfig:
    return family_of("gpt_oss").folder.read(Fields("config.json", {**PUBLISHED, **changes}), "m")


def test_the_published_description_is_read() -> None:
    config = read()

    assert config.windows == (128, 0) * 12
    assert config.experts == Experts(count=32, chosen=4, biased=True)
    assert config.activation is Activation.CLAMPED_SWIGLU
    assert config.swiglu_limit == 7.0
    assert config.rope == Rope(150000.0, scaling=YarnScaling(32.0, 4096, 1.3465735902799727, truncate=False))
    assert (config.qkv_bias, config.out_bias, config.sinks, config.tied_head) == (True, True, True, False)
    assert config.parameters == 20_914_757_184
    assert config.active_parameters == pytest.approx(3.6e9, rel=0.01)


def test_the_bounds_of_its_yarn_are_not_rounded() -> None:
    """low = 32 ln(4096 / 64 pi) / ln(150000), high = 32 ln(4096 / 2 pi) / ln(150000)."""
    rope = read().rope
    plain, found = inverse_frequencies(Rope(150000.0), 64), inverse_frequencies(rope, 64)

    low, high = 8.0928, 17.3980
    kept = 1.0 - (12 - low) / (high - low)
    assert found[12] / plain[12] == pytest.approx(kept + (1.0 - kept) / 32.0, rel=1e-4)
    assert found[8] == plain[8]
    assert found[18] == pytest.approx(plain[18] / 32.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": False}, "attention_bias is False; it must be true"),
        ({"swiglu_alpha": 1.0}, "swiglu_alpha is 1.0; it must be 1.702"),
        ({"swiglu_limit": 0.0}, "swiglu_limit is 0.0; it must be above 0"),
        ({"num_experts_per_tok": 33}, "a token chooses 33 of 32 experts"),
        ({"num_local_experts": 5000}, "a layer has 5000 experts, at most 4096 are taken"),
    ],
)
def test_what_is_not_gpt_oss_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)

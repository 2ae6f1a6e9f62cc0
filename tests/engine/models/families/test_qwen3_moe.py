"""Qwen3's mixtures of experts: their configuration as published, and what is refused."""

from pathlib import Path
from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import Experts, ModelConfig
from engine.models.families import family_of
from engine.models.weights import RandomWeights
from tests.engine.test_experts import TINY

PUBLISHED: dict[str, Any] = {
    "attention_bias": False,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_position_embeddings": 40960,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
"""Qwen/Qwen3-30B-A3B's config.json but for entries that say nothing about the arithmetic."""


def read(**changes: Any) -> ModelConfig:
    return family_of("qwen3_moe").folder.read(Fields("config.json", {**PUBLISHED, **changes}), "m")


def test_the_published_description_is_read() -> None:
    config = read()

    assert config.experts == Experts(count=128, chosen=8)
    assert (config.ffn, config.qk_norm) == (768, True)
    assert config.parameters == 30_532_122_624
    assert config.active_parameters == pytest.approx(3.0e9, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2; it must be 1: every layer has experts"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]; it must be empty"),
        ({"num_experts_per_tok": 0}, "a token chooses 0 of 128 experts"),
        ({"attention_bias": True}, "attention_bias is True; it must be false"),
    ],
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(**changes)


def test_a_written_folder_is_the_same_model(tmp_path: Path) -> None:
    weights = RandomWeights(TINY, 4)

    again = open_model(str(write_checkpoint(weights, tmp_path)))

    assert again.config.experts == TINY.experts
    for name in ("layers.1.router", "layers.1.experts.4.w_down", "layers.0.experts.0.w_up"):
        assert (again.weights.get(name) == weights.get(name)).all()

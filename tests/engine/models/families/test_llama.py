"""Llama-style config.json files, old and new, and what must be refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import ModelConfig
from engine.models.families import folder_format
from engine.models.presets import load_preset
from engine.models.rope import Llama3Scaling, Rope, RopeLayout
from engine.models.weights import RandomWeights
from engine.reference import Reference

ENTRIES = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
}


def read(**changes: Any) -> ModelConfig:
    entries = {**ENTRIES, **changes}
    return folder_format(entries["model_type"], "m").read(Fields("config.json", entries), "llama-3.2-1b")


def test_the_published_config_is_the_preset() -> None:
    assert read() == load_preset("llama-3.2-1b").config


def test_rotary_settings_of_transformers_5_are_read() -> None:
    parameters = {**ENTRIES["rope_scaling"], "rope_theta": 500000.0}  # type: ignore[dict-item]

    assert read(rope_scaling=None, rope_theta=None, rope_parameters=parameters) == read()


def test_heads_default_to_one_kv_head_each_and_an_even_share_of_the_width() -> None:
    config = read(num_key_value_heads=None, head_dim=None)

    assert (config.kv_heads, config.head_dim) == (32, 64)


def test_a_llama_ignores_a_window_that_it_does_not_use() -> None:
    assert read(sliding_window=4096).windows == (0,) * 16


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"attention_bias": True},
            "attention_bias is True; it must be false: these biases",
        ),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be 'silu'"),
        ({"hidden_size": None}, "lacks hidden_size"),
        ({"hidden_size": "2048"}, "hidden_size is '2048'; it must be a whole number"),
        ({"hidden_size": True}, "hidden_size is True"),
        ({"hidden_size": 10**30}, "hidden_size is 1000000000000000000000000000000"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000; it must be a whole number up to 1024",
        ),
        ({"num_hidden_layers": -1}, "layers is -1, must be at least 1"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be at least 1"),
        ({"num_key_value_heads": 5}, "do not share 5 KV heads evenly"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny'; it must be a number"),
        ({"rms_norm_eps": -1e-5}, "norm_eps is -1e-05, must be above 0"),
        ({"rope_theta": 10**400}, "rope_theta is 1000000000.*; it must be a number"),
        ({"max_position_embeddings": 1 << 25}, "context is 33554432, must be at most 16777216"),
        ({"rope_theta": float("inf")}, "rope_theta is inf"),
        ({"rope_theta": -1.0}, "rope_theta is -1"),
        ({"rope_scaling": {"type": "dynamic"}}, "it must be 'default', 'linear', 'llama3' or 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3"}}, r"lacks rope_scaling\.low_freq_factor"),
        (
            {"rope_scaling": {**ENTRIES["rope_scaling"], "low_freq_factor": 4.0}},  # type: ignore[dict-item]
            "low_freq_factor is 4.0; it must be above 0 and below",
        ),
        ({"rope_scaling": [1]}, "rope_scaling is .1.; it must be an object"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; it must be true or false"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": list(range(5000))}, "eos_token_id is .*; it must be a whole number or a list"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as error:
        read(**changes)

    assert len(str(error.value)) < 300


@pytest.mark.slow
@pytest.mark.parametrize("layout", list(RopeLayout))
@pytest.mark.parametrize("scaling", [None, Llama3Scaling(8.0, 1.0, 4.0, 64)], ids=["plain", "llama3"])
def test_transformers_reads_a_written_folder_and_agrees(
    tmp_path: Path, layout: RopeLayout, scaling: Llama3Scaling | None
) -> None:
    config = replace(load_preset("tiny-llama").config, rope=Rope(10000.0, layout, scaling), tied_head=True)
    source = RandomWeights(config, seed=4)
    folder = write_checkpoint(source, tmp_path / "m", dtype="f32", shard_bytes=200_000)
    tokens = list(np.random.default_rng(0).integers(0, config.vocab, 90))

    with torch.no_grad():
        theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(torch.tensor([tokens]))

    for weights in (source, open_model(str(folder)).weights):
        reference = Reference(weights)
        ours = reference.forward(tokens, reference.new_cache(len(tokens)))
        np.testing.assert_allclose(ours, theirs.logits[0].numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_folder_that_transformers_writes_is_read(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    settings = LlamaConfig(
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=80,
        vocab_size=100,
        max_position_embeddings=64,
        rope_theta=5000.0,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    theirs = LlamaForCausalLM(settings).to(torch.bfloat16)
    theirs.save_pretrained(tmp_path, max_shard_size="20KB")
    tokens = [1, 99, 4, 4, 50]

    model = open_model(str(tmp_path))

    assert model.weights.native == "bf16"
    assert json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    with torch.no_grad():
        expected = theirs.float()(torch.tensor([tokens])).logits[0].numpy()
    reference = Reference(model.weights)
    ours = reference.forward(tokens, reference.new_cache(8))
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-4)

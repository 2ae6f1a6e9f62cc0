"""Llama-style Hugging Face folders: config.json and the names of the tensors."""

from __future__ import annotations

from typing import Any

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.fields import MOST_LAYERS, Fields
from engine.models.config import ModelConfig, Rope, RopeLayout, RopeScaling

MODEL_TYPES = ("llama", "mistral")

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "w_gate": "mlp.gate_proj",
    "w_up": "mlp.up_proj",
    "w_down": "mlp.down_proj",
}


def llama_names(config: ModelConfig) -> dict[str, str]:
    """Canonical name (engine.models.weights) -> name in the file."""
    names = {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight"}
    if not config.tied_head:
        names["head"] = "lm_head.weight"
    for i in range(config.layers):
        names |= {
            f"layers.{i}.{ours}": f"model.layers.{i}.{theirs}.weight" for ours, theirs in _LAYER_NAMES.items()
        }
    return names


def read_llama_config(fields: Fields, name: str) -> ModelConfig:
    """The shape in a Llama or Mistral config.json. Raises CheckpointError for what is not supported."""
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key, False):
            raise fields.refuse(key, "false: biases are not supported")
    if fields.word("hidden_act", "silu") != "silu":
        raise fields.refuse("hidden_act", "'silu'")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if heads < 1:
        raise fields.refuse("num_attention_heads", "at least 1")
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    window = fields.integer("sliding_window", 0) if fields.word("model_type") == "mistral" else 0
    try:
        return ModelConfig(
            name=name,
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=fields.integer("head_dim", hidden // heads),
            ffn=fields.integer("intermediate_size"),
            vocab=fields.integer("vocab_size"),
            context=fields.integer("max_position_embeddings"),
            norm_eps=fields.number("rms_norm_eps"),
            tied_head=fields.flag("tie_word_embeddings", False),
            rope=read_rope(fields, RopeLayout.HALF),
            windows=(window,) * max(layers, 0),
            bos_id=next(iter(fields.integers("bos_token_id")), None),
            eos_ids=fields.integers("eos_token_id"),
        )
    except ConfigError as error:
        raise CheckpointError(f"{fields.source}: {error}") from error


def read_rope(fields: Fields, layout: RopeLayout) -> Rope:
    """Rotary settings, as Transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) writes them."""
    key = "rope_parameters" if fields.has("rope_parameters") else "rope_scaling"
    entries: Any = fields.raw(key) or {}
    if not isinstance(entries, dict):
        raise fields.refuse(key, "an object")
    inner = Fields(fields.source, entries)
    theta = inner.number("rope_theta", fields.number("rope_theta", 10000.0))
    if theta <= 0:
        raise CheckpointError(f"{fields.source}: rope_theta is {theta}; it must be above 0")
    kind = inner.word("rope_type", inner.word("type", "default"))
    if kind == "default":
        return Rope(theta, layout)
    if kind != "llama3":
        raise fields.refuse(key, "of type 'default' or 'llama3'")
    scaling = RopeScaling(
        factor=inner.number("factor"),
        low_freq_factor=inner.number("low_freq_factor"),
        high_freq_factor=inner.number("high_freq_factor"),
        original_context=inner.integer("original_max_position_embeddings"),
    )
    if scaling.factor <= 0 or scaling.original_context < 1:
        raise fields.refuse(key, "a scaling with a factor above 0 and an original context of at least 1")
    if not 0 < scaling.low_freq_factor < scaling.high_freq_factor:
        raise fields.refuse(key, "a scaling with 0 < low_freq_factor < high_freq_factor")
    return Rope(theta, layout, scaling)


def llama_config_json(config: ModelConfig) -> dict[str, Any]:
    """The config.json from which `read_llama_config` makes `config`. Raises ConfigError if it cannot."""
    if config.lanes.count != 1 or any(config.windows):
        raise ConfigError(f"model {config.name!r} has lanes or windows: write it as a Laneformer")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        **rope_json(config.rope),
        **ids_json(config),
    }


def rope_json(rope: Rope) -> dict[str, Any]:
    if rope.scaling is None:
        return {"rope_theta": rope.theta}
    return {
        "rope_theta": rope.theta,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": rope.scaling.factor,
            "low_freq_factor": rope.scaling.low_freq_factor,
            "high_freq_factor": rope.scaling.high_freq_factor,
            "original_max_position_embeddings": rope.scaling.original_context,
        },
    }


def ids_json(config: ModelConfig) -> dict[str, Any]:
    return {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids) or None}

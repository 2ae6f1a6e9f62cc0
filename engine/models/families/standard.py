"""What the files of plain transformers have in common: Llama's, and those of the families after it.

A family module calls these functions with what it does differently.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.fields import MOST_LAYERS, Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import Experts, ModelConfig
from engine.models.families.family import Names
from engine.models.families.rope_entries import read_gguf_rope, read_rope, rope_json
from engine.models.rope import RopeLayout

FOLDER_NAMES = Names(
    top={"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    layer={
        "attn_norm": "input_layernorm.weight",
        "wq": "self_attn.q_proj.weight",
        "wk": "self_attn.k_proj.weight",
        "wv": "self_attn.v_proj.weight",
        "bq": "self_attn.q_proj.bias",
        "bk": "self_attn.k_proj.bias",
        "bv": "self_attn.v_proj.bias",
        "q_norm": "self_attn.q_norm.weight",
        "k_norm": "self_attn.k_norm.weight",
        "sinks": "self_attn.sinks",
        "wo": "self_attn.o_proj.weight",
        "bo": "self_attn.o_proj.bias",
        "ffn_norm": "post_attention_layernorm.weight",
        "w_gate": "mlp.gate_proj.weight",
        "w_up": "mlp.up_proj.weight",
        "w_down": "mlp.down_proj.weight",
    },
    layer_prefix="model.layers.{}.",
)

GGUF_NAMES = Names(
    top={"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
    layer={
        "attn_norm": "attn_norm.weight",
        "wq": "attn_q.weight",
        "wk": "attn_k.weight",
        "wv": "attn_v.weight",
        "bq": "attn_q.bias",
        "bk": "attn_k.bias",
        "bv": "attn_v.bias",
        "q_norm": "attn_q_norm.weight",
        "k_norm": "attn_k_norm.weight",
        "sinks": "attn_sinks.weight",
        "wo": "attn_output.weight",
        "bo": "attn_output.bias",
        "ffn_norm": "ffn_norm.weight",
        "w_gate": "ffn_gate.weight",
        "w_up": "ffn_up.weight",
        "w_down": "ffn_down.weight",
        "router": "ffn_gate_inp.weight",
        "router_bias": "ffn_gate_inp.bias",
    },
    layer_prefix="blk.{}.",
    expert={
        "w_gate": "ffn_gate_exps.weight",
        "w_up": "ffn_up_exps.weight",
        "w_down": "ffn_down_exps.weight",
        "b_gate": "ffn_gate_exps.bias",
        "b_up": "ffn_up_exps.bias",
        "b_down": "ffn_down_exps.bias",
    },
)


def read_standard(fields: Fields, name: str, family: str, **own: Any) -> ModelConfig:
    """The shape in a config.json; `own` replaces or adds fields of ModelConfig.

    Raises CheckpointError for what is not supported.
    """
    for key in ("attention_bias", "mlp_bias"):
        if fields.flag(key, False) and not own.get("out_bias"):
            raise fields.refuse(key, "false: these biases are not supported")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if heads < 1:
        raise fields.refuse("num_attention_heads", "at least 1")
    if "activation" not in own and fields.word("hidden_act", "silu") != "silu":
        raise fields.refuse("hidden_act", "'silu'")
    found = {
        "hidden": hidden,
        "layers": layer_count(fields),
        "heads": heads,
        "kv_heads": fields.integer("num_key_value_heads", heads),
        "head_dim": fields.integer("head_dim", hidden // heads),
        "ffn": fields.integer("intermediate_size"),
        "vocab": fields.integer("vocab_size"),
        "context": fields.integer("max_position_embeddings"),
        "norm_eps": fields.number("rms_norm_eps", 1e-6),
        "tied_head": fields.flag("tie_word_embeddings", False),
        "bos_id": next(iter(fields.integers("bos_token_id")), None),
        "eos_ids": fields.integers("eos_token_id"),
        **own,
    }
    if "rope" not in found:
        found["rope"] = read_rope(fields, RopeLayout.HALF)
    return _config(fields.source, name, family, found)


def layer_count(fields: Fields) -> int:
    return fields.integer("num_hidden_layers", most=MOST_LAYERS)


def read_windows(fields: Fields, sliding: tuple[bool, ...], default: int | None = None) -> tuple[int, ...]:
    """The window of each layer: that of the file where `layer_types`, or else `sliding`, says so."""
    if fields.has("layer_types"):
        kinds = fields.words("layer_types")
        if len(kinds) != len(sliding) or not set(kinds) <= {"sliding_attention", "full_attention"}:
            raise fields.refuse(
                "layer_types", f"{len(sliding)} times 'sliding_attention' or 'full_attention'"
            )
        sliding = tuple(kind == "sliding_attention" for kind in kinds)
    if not any(sliding):
        return ()
    window = fields.integer("sliding_window", default)
    if window < 1:
        raise fields.refuse("sliding_window", "at least 1")
    return tuple(window if slides else 0 for slides in sliding)


def standard_json(config: ModelConfig, model_type: str, architecture: str) -> dict[str, Any]:
    """The config.json that `read_standard` makes `config` from."""
    return {
        "architectures": [architecture],
        "model_type": model_type,
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


def windows_json(config: ModelConfig) -> dict[str, Any]:
    """`layer_types` and the largest window."""
    size = max(config.windows)
    kinds = ["sliding_attention" if window else "full_attention" for window in config.windows]
    return {"use_sliding_window": size > 0, "sliding_window": size or None, "layer_types": kinds}


def ids_json(config: ModelConfig) -> dict[str, Any]:
    return {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids) or None}


def gguf_fields(file: GgufFile) -> Fields:
    """The entries about the model's shape in a GGUF header."""
    return Fields(file.path.name, file.metadata, f"{file.metadata['general.architecture']}.")


def read_standard_gguf(file: GgufFile, name: str, family: str, layout: RopeLayout, **own: Any) -> ModelConfig:
    """The shape in a GGUF header; `own` replaces or adds fields of ModelConfig.

    Raises CheckpointError for what is not supported.
    """
    fields = gguf_fields(file)
    hidden, heads = fields.integer("embedding_length"), fields.integer("attention.head_count")
    if heads < 1:
        raise fields.refuse("attention.head_count", "at least 1")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    if fields.integer("attention.value_length", head_dim) != head_dim:
        raise fields.refuse("attention.value_length", f"the head size, {head_dim}")
    if "rope" not in own:
        if fields.integer("rope.dimension_count", head_dim) != head_dim:
            raise fields.refuse("rope.dimension_count", f"the head size, {head_dim}")
        own["rope"] = read_gguf_rope(file, fields, head_dim, layout)
    if fields.integer("expert_count", 0) and "experts" not in own:
        raise CheckpointError(
            f"{file.path.name} is a mixture of experts, which is not supported for {family}"
        )
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    ids = Fields(file.path.name, file.metadata, "tokenizer.ggml.")
    found = {
        "hidden": hidden,
        "layers": fields.integer("block_count", most=MOST_LAYERS),
        "heads": heads,
        "kv_heads": fields.integer("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "ffn": fields.integer("feed_forward_length"),
        "vocab": fields.integer("vocab_size", len(tokens) if isinstance(tokens, list) else None),
        "context": fields.integer("context_length"),
        "norm_eps": _shortest(fields.number("attention.layer_norm_rms_epsilon")),
        "tied_head": "output.weight" not in file.tensors,
        "bos_id": next(iter(ids.integers("bos_token_id")), None),
        "eos_ids": ids.integers("eos_token_id"),
        **own,
    }
    return _config(file.path.name, name, family, found)


def gguf_experts(fields: Fields, *, biased: bool = False) -> Experts:
    """The experts that a GGUF header declares; llama.cpp renormalises the weights of the chosen ones."""
    return Experts(fields.integer("expert_count"), fields.integer("expert_used_count"), biased=biased)


def _config(source: str, name: str, family: str, found: dict[str, Any]) -> ModelConfig:
    try:
        return ModelConfig(name=name, family=family, **found)
    except ConfigError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _shortest(value: float) -> float:
    """A float32 as the shortest decimal that means it: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))

"""Hugging Face's Llama holding the weights of one of our models: an implementation by other people."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.models.config import ModelConfig
from engine.models.rope import RopeLayout
from engine.models.weights import Weights

_NAMES = {
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


def hf_llama(weights: Weights) -> LlamaForCausalLM:
    """The FP32 module, ready to run. Only for models of one lane and full attention."""
    c = weights.config
    assert c.lanes.count == 1
    assert not any(c.windows)
    with torch.device("meta"):
        model = LlamaForCausalLM(_config(c))
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    missing, unexpected = model.load_state_dict(_state(weights), strict=False, assign=True)
    assert not unexpected
    assert set(missing) <= ({"lm_head.weight"} if c.tied_head else set())
    model.tie_weights()
    return model.eval()


def _config(c: ModelConfig) -> LlamaConfig:
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": c.rope.theta}
    if c.rope.scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": c.rope.scaling.factor,
            "low_freq_factor": c.rope.scaling.low_freq_factor,
            "high_freq_factor": c.rope.scaling.high_freq_factor,
            "original_max_position_embeddings": c.rope.scaling.original_context,
        }
    return LlamaConfig(
        hidden_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        head_dim=c.head_dim,
        intermediate_size=c.ffn,
        vocab_size=c.vocab,
        max_position_embeddings=c.context,
        rms_norm_eps=c.norm_eps,
        tie_word_embeddings=c.tied_head,
        rope_parameters=rope,
        attention_bias=False,
        mlp_bias=False,
        pad_token_id=None,
    )


def _state(weights: Weights) -> dict[str, torch.Tensor]:
    c = weights.config
    state = {
        "model.embed_tokens.weight": _tensor(weights, "embed"),
        "model.norm.weight": _tensor(weights, "norm"),
    }
    if not c.tied_head:
        state["lm_head.weight"] = _tensor(weights, "head")
    for i in range(c.layers):
        for ours, theirs in _NAMES.items():
            tensor = _tensor(weights, f"layers.{i}.{ours}")
            if ours in ("wq", "wk") and c.rope.layout is RopeLayout.INTERLEAVED:
                tensor = _halves(tensor, c.head_dim)
            state[f"model.layers.{i}.{theirs}.weight"] = tensor
    return state


def _tensor(weights: Weights, name: str) -> torch.Tensor:
    tensor = torch.tensor(weights.get(name))
    return tensor[0] if tensor.ndim == 3 else tensor


def _halves(matrix: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Rows of each head reordered from interleaved pairs to one half after the other."""
    heads = matrix.unflatten(0, (-1, head_dim // 2, 2))
    return heads.transpose(1, 2).flatten(0, 2)

"""Llama-architecture models in GGUF files: their shape and their weights.

GGUF keeps the rows of the query and key matrices in the order that interleaved rotary pairs need, so
such a model has RopeLayout.INTERLEAVED and its matrices are used as they lie.
"""

from __future__ import annotations

import numpy as np

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.fields import MOST_LAYERS, Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.checkpoints.stored import Stored, StoredWeights
from engine.models.config import ModelConfig, Rope, RopeLayout, RopeScaling
from engine.models.rope import inverse_frequencies

_NAMES = {
    "attn_norm": "attn_norm",
    "wq": "attn_q",
    "wk": "attn_k",
    "wv": "attn_v",
    "wo": "attn_output",
    "ffn_norm": "ffn_norm",
    "w_gate": "ffn_gate",
    "w_up": "ffn_up",
    "w_down": "ffn_down",
}
_ROPE_FACTORS = "rope_freqs.weight"


def gguf_config(file: GgufFile, name: str) -> ModelConfig:
    """The shape that a GGUF file declares. Raises CheckpointError if it is not a plain Llama."""
    meta = Fields(file.path.name, file.metadata, "llama.")
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise CheckpointError(f"{file.path.name} holds architecture {architecture!r}; supported is 'llama'")
    hidden, heads = meta.integer("embedding_length"), meta.integer("attention.head_count")
    if heads < 1:
        raise meta.refuse("attention.head_count", "at least 1")
    head_dim = meta.integer("attention.key_length", hidden // heads)
    for key, value in (("attention.value_length", head_dim), ("rope.dimension_count", head_dim)):
        if meta.integer(key, value) != value:
            raise meta.refuse(key, f"the head size, {head_dim}")
    if meta.integer("expert_count", 0):
        raise CheckpointError(f"{file.path.name} is a mixture of experts, which is not supported")
    theta = meta.number("rope.freq_base", 10000.0)
    tokens = file.metadata.get("tokenizer.ggml.tokens", ())
    eos = file.metadata.get("tokenizer.ggml.eos_token_id")
    try:
        return ModelConfig(
            name=name,
            hidden=hidden,
            layers=meta.integer("block_count", most=MOST_LAYERS),
            heads=heads,
            kv_heads=meta.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            ffn=meta.integer("feed_forward_length"),
            vocab=meta.integer("vocab_size", len(tokens)),
            context=meta.integer("context_length"),
            norm_eps=_short(meta.number("attention.layer_norm_rms_epsilon")),
            tied_head="output.weight" not in file.tensors,
            rope=Rope(theta, RopeLayout.INTERLEAVED, _scaling(file, meta, head_dim, theta)),
            bos_id=file.metadata.get("tokenizer.ggml.bos_token_id"),
            eos_ids=() if eos is None else (int(eos),),
        )
    except ConfigError as error:
        raise CheckpointError(f"{file.path.name}: {error}") from error


def gguf_weights(file: GgufFile, config: ModelConfig) -> StoredWeights:
    """The weights of a GGUF file. Raises CheckpointError for a tensor that is missing or unknown."""
    tensors: dict[str, Stored] = {}
    for canonical, stored in _expected(config).items():
        if stored in file.tensors:
            tensors[canonical] = file.tensors[stored]
    unknown = set(file.tensors) - set(_expected(config).values()) - {_ROPE_FACTORS}
    if unknown:
        raise CheckpointError(
            f"{file.path.name} holds {len(unknown)} tensors that a plain Llama has not, such as"
            f" {min(unknown)!r} (biases, experts or extra norms): such a variant is not supported"
        )
    return StoredWeights(config, tensors)


def _expected(config: ModelConfig) -> dict[str, str]:
    names = {"embed": "token_embd.weight", "norm": "output_norm.weight"}
    if not config.tied_head:
        names["head"] = "output.weight"
    for i in range(config.layers):
        names |= {f"layers.{i}.{ours}": f"blk.{i}.{theirs}.weight" for ours, theirs in _NAMES.items()}
    return names


def _short(value: float) -> float:
    """A float32 as the shortest decimal that means it: 9.999999747378752e-06 is 1e-05."""
    return float(str(np.float32(value)))


def _scaling(file: GgufFile, meta: Fields, head_dim: int, theta: float) -> RopeScaling | None:
    """Llama 3.1's scaling, recognised by the factors that the file stores in its place."""
    if meta.word("rope.scaling.type", "none") != "none":
        raise meta.refuse("rope.scaling.type", "'none'")
    if _ROPE_FACTORS not in file.tensors:
        return None
    factors = file.tensors[_ROPE_FACTORS].read("f32").reshape(-1)
    if len(factors) * 2 != head_dim:
        raise CheckpointError(
            f"{file.path.name}: {_ROPE_FACTORS} holds {len(factors)} factors for {head_dim // 2} pairs"
        )
    guess = RopeScaling(float(factors.max(initial=1.0)), 1.0, 4.0, 8192)
    stretched = inverse_frequencies(Rope(theta, scaling=guess), head_dim)
    expected = inverse_frequencies(Rope(theta), head_dim) / stretched
    if not np.allclose(factors, expected, rtol=1e-3):
        raise CheckpointError(f"{file.path.name}: {_ROPE_FACTORS} does not follow Llama 3.1's scaling")
    return guess

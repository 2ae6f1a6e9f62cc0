"""A GGUF file of a plain Llama's shape in F16, with the random weights that our backends run.

For llama-bench, which needs no vocabulary. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig, tensor_shapes
from engine.models.rope import inverse_frequencies
from engine.models.weights import RandomWeights
from tools.bench_peers.peer import PeerUnavailable

_UINT32, _FLOAT32, _STRING = 4, 6, 8
_F32, _F16 = 0, 1
_ALIGNMENT = 32
_LAYER = {
    "attn_norm": "attn_norm", "wq": "attn_q", "wk": "attn_k", "wv": "attn_v", "wo": "attn_output",
    "ffn_norm": "ffn_norm", "w_gate": "ffn_gate", "w_up": "ffn_up", "w_down": "ffn_down",
}  # fmt: skip


_MOST_DISTINCT = 4_000_000_000
"""Weights of a file whose layers all differ; a larger one has its first layer's numbers in all of them."""


def write_gguf(path: Path, config: ModelConfig) -> None:
    """Writes the file anew. Raises PeerUnavailable for a shape that is no plain Llama's.

    What is timed does not depend on the numbers, and those of a large model take minutes to draw.
    """
    if config.family not in ("llama", "laneformer") or config.lanes.count > 1 or config.features:
        raise PeerUnavailable(f"{config.name} is no plain Llama: this tool writes no GGUF file of it")
    names = dict(_names(config))
    weights = RandomWeights(config, 0)
    shapes = dict(tensor_shapes(config))
    factors = _rope_factors(config)
    sizes = [(theirs, shapes[ours][-2:]) for theirs, ours in names.items()]
    sizes += [("rope_freqs.weight", factors.shape)] if factors is not None else []
    scratch = path.with_suffix(".part")
    drawn: dict[str, NDArray[np.float16]] = {}
    with scratch.open("wb") as out:
        out.write(_header(config, sizes))
        for ours in names.values():
            if config.parameters <= _MOST_DISTINCT or not ours.startswith("layers."):
                tensor = weights.get(ours, "f16")
            else:
                kind = ours.split(".", 2)[2]
                tensor = drawn[kind] = drawn[kind] if kind in drawn else weights.get(ours, "f16")
            _write(out, tensor.astype(np.float32) if tensor.ndim == 1 else tensor)
        if factors is not None:
            _write(out, factors)
    scratch.replace(path)


def _names(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "token_embd.weight", "embed"
    for i in range(config.layers):
        for ours, theirs in _LAYER.items():
            yield f"blk.{i}.{theirs}.weight", f"layers.{i}.{ours}"
    yield "output_norm.weight", "norm"
    if not config.tied_head:
        yield "output.weight", "head"


def _rope_factors(config: ModelConfig) -> NDArray[np.float32] | None:
    """What each pair's frequency is divided by, as llama.cpp keeps the scaling of Llama 3."""
    if config.rope.scaling is None:
        return None
    pairs = np.arange(config.head_dim // 2) * 2.0 / config.head_dim
    return (config.rope.theta**-pairs / inverse_frequencies(config.rope, config.head_dim)).astype(np.float32)


def _header(config: ModelConfig, sizes: list[tuple[str, tuple[int, ...]]]) -> bytes:
    pairs = [
        _pair("general.architecture", "llama"),
        _pair("general.name", f"{config.name}, random weights"),
        _pair("general.file_type", 1),
        _pair("llama.block_count", config.layers),
        _pair("llama.context_length", config.context),
        _pair("llama.embedding_length", config.hidden),
        _pair("llama.feed_forward_length", config.ffn),
        _pair("llama.attention.head_count", config.heads),
        _pair("llama.attention.head_count_kv", config.kv_heads),
        _pair("llama.attention.key_length", config.head_dim),
        _pair("llama.attention.value_length", config.head_dim),
        _pair("llama.attention.layer_norm_rms_epsilon", config.norm_eps),
        _pair("llama.rope.dimension_count", config.head_dim),
        _pair("llama.rope.freq_base", config.rope.theta),
        _pair("llama.vocab_size", config.vocab),
        _pair("tokenizer.ggml.model", "none"),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(sizes), len(pairs)) + b"".join(pairs)
    offset = 0
    for name, shape in sizes:
        wide = len(shape) == 1
        head += _text(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        head += struct.pack("<IQ", _F32 if wide else _F16, offset)
        offset += _pad(int(np.prod(shape)) * (4 if wide else 2))
    return head + bytes(_pad(len(head)) - len(head))


def _pair(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    kind, form = (_UINT32, "<I") if isinstance(value, int) else (_FLOAT32, "<f")
    return _text(key) + struct.pack("<I", kind) + struct.pack(form, value)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _pad(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _write(out: IO[bytes], tensor: NDArray[np.float16] | NDArray[np.float32]) -> None:
    out.write(np.ascontiguousarray(tensor).data)
    out.write(bytes(_pad(tensor.nbytes) - tensor.nbytes))

"""A GGUF file with the random weights that our backends run: matrices in F16, experts in MXFP4 if ours are.

For llama-bench, which needs no vocabulary. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.models.config import ModelConfig, is_matrix, tensor_shapes
from engine.models.families import family_of
from engine.models.families.family import GgufFormat
from engine.models.rope import Llama3Scaling, YarnScaling, inverse_frequencies
from engine.models.storage import Storage
from engine.models.weights import PackedWeights
from tools.bench_peers.peer import PeerUnavailable

_UINT32, _FLOAT32, _STRING = 4, 6, 8
_F32, _F16, _MXFP4 = 0, 1, 39
_ALIGNMENT = 32
_MOST_DISTINCT = 4_000_000_000
"""Weights of a file whose layers all differ; a larger one has its first layer's numbers in all of them, and
its first expert's in all experts."""
_PLAIN = ("llama", "laneformer")
"""Families written as Llama, which has none of the features that others of them may have."""
_WRITTEN = (*_PLAIN, "qwen2", "qwen3", "qwen3_moe", "gpt_oss")


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    """In the file."""
    parts: tuple[str, ...]
    """Of ours: one, or one for each expert."""
    kind: int
    shape: tuple[int, ...]
    """Of the whole, slowest first."""

    @property
    def nbytes(self) -> int:
        count = int(np.prod(self.shape))
        return count // 32 * 17 if self.kind == _MXFP4 else count * (4 if self.kind == _F32 else 2)


def precision(weights: PackedWeights) -> str:
    """What a file says of its numbers, in words."""
    packed = any(weights.storage(name) is Storage.MXFP4 for name in dict(tensor_shapes(weights.config)))
    return "F16, experts MXFP4" if packed else "F16"


def write_gguf(path: Path, weights: PackedWeights) -> None:
    """Writes the file anew. Raises PeerUnavailable for a shape that it cannot say.

    What is timed does not depend on the numbers, and those of a large model take minutes to draw.
    """
    config = weights.config
    more_than_llama = config.family in _PLAIN and config.features
    if config.family not in _WRITTEN or config.lanes.count > 1 or more_than_llama:
        raise PeerUnavailable(
            f"{config.name} is no plain Llama, Qwen or GPT-OSS: this tool writes no GGUF file of it"
        )
    tensors = list(_tensors(weights))
    factors = _rope_factors(config)
    if factors is not None:
        tensors.append(_Tensor("rope_freqs.weight", (), _F32, factors.shape))
    drawn: dict[str, NDArray[Any]] = {}

    def draw(name: str, kind: int) -> NDArray[Any]:
        *layer, last = name.split(".")
        if config.parameters <= _MOST_DISTINCT or not layer:
            return _draw(weights, name, kind)
        if last not in drawn:
            drawn[last] = _draw(weights, name, kind)
        return drawn[last]

    scratch = path.with_suffix(".part")
    with scratch.open("wb") as out:
        out.write(_header(config, tensors))
        for tensor in tensors:
            for part in tensor.parts:
                out.write(np.ascontiguousarray(draw(part, tensor.kind)).data)
            if not tensor.parts and factors is not None:
                out.write(factors.data)
            out.write(bytes(_pad(tensor.nbytes) - tensor.nbytes))
    scratch.replace(path)


def _form(config: ModelConfig) -> GgufFormat:
    form = family_of("llama" if config.family in _PLAIN else config.family).gguf
    assert form is not None  # noqa: S101 - those above have one
    return form


def _draw(weights: PackedWeights, name: str, kind: int) -> NDArray[Any]:
    return (
        weights.packed(name).rows if kind == _MXFP4 else weights.get(name, "f32" if kind == _F32 else "f16")
    )


def _tensors(weights: PackedWeights) -> Iterator[_Tensor]:
    config = weights.config
    form = _form(config)
    places, shapes = form.places(config), dict(tensor_shapes(config))
    parts: dict[str, list[str]] = {}
    for name in shapes:
        parts.setdefault(places[name].name, []).append(name)
    for theirs, ours in parts.items():
        first = ours[0]
        shape = shapes[first]
        if len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]  # the one lane
        if "experts" in first:
            shape = (len(ours), *shape)
        yield _Tensor(theirs, tuple(ours), _kind(weights, first), shape)


def _kind(weights: PackedWeights, name: str) -> int:
    if not is_matrix(name) or name.endswith("router"):
        return _F32
    return _MXFP4 if weights.storage(name) is Storage.MXFP4 else _F16


def _rope_factors(config: ModelConfig) -> NDArray[np.float32] | None:
    """What each pair's frequency is divided by, as llama.cpp keeps the scaling of Llama 3."""
    if not isinstance(config.rope.scaling, Llama3Scaling):
        return None
    pairs = np.arange(config.head_dim // 2) * 2.0 / config.head_dim
    return (config.rope.theta**-pairs / inverse_frequencies(config.rope, config.head_dim)).astype(np.float32)


def _header(config: ModelConfig, tensors: list[_Tensor]) -> bytes:
    form = _form(config)
    own = {f"{form.architecture}.{key}": value for key, value in _sizes(config).items()}
    said: dict[str, str | int | float] = {
        "general.architecture": form.architecture,
        "general.name": f"{config.name}, random weights",
        "general.file_type": 1,
        **own,
        "tokenizer.ggml.model": "none",
    }
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(said))
    head += b"".join(_pair(key, value) for key, value in said.items())
    offset = 0
    for tensor in tensors:
        size = len(tensor.shape)
        head += _text(tensor.name) + struct.pack(f"<I{size}Q", size, *reversed(tensor.shape))
        head += struct.pack("<IQ", tensor.kind, offset)
        offset += _pad(tensor.nbytes)
    return head + bytes(_pad(len(head)) - len(head))


def _sizes(config: ModelConfig) -> dict[str, str | int | float]:
    said: dict[str, str | int | float] = {
        "block_count": config.layers,
        "context_length": config.context,
        "embedding_length": config.hidden,
        "feed_forward_length": config.ffn,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.dimension_count": config.head_dim,
        "rope.freq_base": config.rope.theta,
        "vocab_size": config.vocab,
    }
    if any(config.windows):
        said["attention.sliding_window"] = max(config.windows)
    if config.experts:
        said["expert_count"] = config.experts.count
        said["expert_used_count"] = config.experts.chosen
        said["expert_feed_forward_length"] = config.ffn
    if isinstance(config.rope.scaling, YarnScaling):
        said["rope.scaling.type"] = "yarn"
        said["rope.scaling.factor"] = config.rope.scaling.factor
        said["rope.scaling.original_context_length"] = config.rope.scaling.original_context
    return said


def _pair(key: str, value: str | int | float) -> bytes:
    if isinstance(value, str):
        return _text(key) + struct.pack("<I", _STRING) + _text(value)
    kind, form = (_UINT32, "<I") if isinstance(value, int) else (_FLOAT32, "<f")
    return _text(key) + struct.pack("<I", kind) + struct.pack(form, value)


def _text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def _pad(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT

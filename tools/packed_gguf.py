"""A GGUF file of a preset's shape with random packed weights, which llama.cpp reads too.

The types are those that llama.cpp's own quantisation gives: all of one type, or Q4_K_M's mixture, in which a
third of the layers hold attn_v and ffn_down in Q6_K, a tied embedding is in Q6_K, and rows that are no
multiple of 256 fall back to Q5_0 and Q8_0. Speed does not depend on the numbers; their spread is that of
engine.models.weights.RandomWeights, so that the logits are those of a model.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from engine.models.checkpoints.block_formats import BLOCK_FORMATS
from engine.models.config import ModelConfig, is_matrix, tensor_shapes
from engine.models.families import family_of
from engine.models.weights import RandomWeights

MIXTURES = ("Q8_0", "Q4_K_M")
_RUN = 256
_FALLBACK = {"Q4_K": "Q5_0", "Q6_K": "Q8_0"}
_SPREAD = {"Q8_0": 73.9, "Q5_0": 9.24, "Q4_K": 148.0, "Q6_K": 1366.0}
"""Standard deviation of random bits, the scales at 1; Q4_K's offsets make its mean 0."""
_OFFSET = 7.5


def write_packed_gguf(path: Path, config: ModelConfig, mixture: str, seed: int = 0) -> Path:
    """Writes the file, one tensor in memory at a time but for what the gguf library keeps."""
    weights = RandomWeights(config, seed)
    form = family_of(config.family).gguf
    assert form is not None  # noqa: S101 (a preset of a family that has GGUF files)
    places = form.places(config)
    writer = gguf.GGUFWriter(path, form.architecture)
    add_shape(writer, config)
    _add_words(writer, config)
    for name, shape in tensor_shapes(config):
        if not is_matrix(name):
            writer.add_tensor(places[name].name, weights.get(name).reshape(shape[-1]))
            continue
        kind = _type_of(config, name, shape[-1], mixture)
        spread = weights.recipe(name)[1] / 3**0.5
        rows = random_blocks(kind, int(np.prod(shape[:-1])), shape[-1], spread, zlib.crc32(name.encode()))
        writer.add_tensor(places[name].name, rows, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_blocks(kind: str, rows: int, columns: int, spread: float, seed: int) -> NDArray[np.uint8]:
    """Random bits but for the scales, [rows, bytes]."""
    form, rng = BLOCK_FORMATS[kind], np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // form.elements, form.size), np.uint8)
    for number, at in enumerate(form.scales_at):
        scale = np.float16(spread / _SPREAD[kind] * (_OFFSET if number else 1.0))
        blocks[:, at : at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(rows, -1)


def _type_of(config: ModelConfig, name: str, columns: int, mixture: str) -> str:
    if mixture != "Q4_K_M":
        return mixture
    *layer, kind = name.split(".")
    more = kind == "head" or (kind == "embed" and config.tied_head)
    if kind in ("wv", "w_down"):
        i, n = int(layer[1]), config.layers
        more = i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2
    chosen = "Q6_K" if more else "Q4_K"
    return _FALLBACK[chosen] if columns % _RUN else chosen


def add_shape(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """What every family's file says of its shape."""
    writer.add_block_count(config.layers)
    writer.add_context_length(config.context)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_rope_freq_base(config.rope.theta)


def _add_words(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    """A vocabulary that both programs load: bytes, and names of no meaning."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    tokens = [*letters, "ab", "<|endoftext|>"]
    tokens += [f"word{i}" for i in range(config.vocab - len(tokens))]
    end = len(letters) + 1
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if i == end else 1 for i in range(len(tokens))])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(end)

"""Checkpoint files made for the tests: GGUF through its own library, safetensors byte by byte."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from engine.models.config import tensor_shapes
from engine.models.weights import Weights
from tools.packed_gguf import add_shape

GGUF_NAMES = {
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
TOP_NAMES = {"embed": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"}


def byte_vocabulary(size: int) -> list[str]:
    """Three special tokens, GPT-2's 256 byte characters, "ab", then numbered fillers."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(b) for b in printable] + [chr(256 + i) for i in range(256 - len(printable))]
    start = ["<unk>", "<s>", "<|im_end|>", *letters, "ab"]
    return start + [f"filler{i}" for i in range(size - len(start))]


def permute(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """What llama.cpp's converter does to the query and key rows of a Hugging Face Llama."""
    shape = (heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return rows.reshape(shape).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(
    path: Path,
    weights: Weights,
    *,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F16,
    metadata: Mapping[str, Any] | None = None,
    tensors: Mapping[str, NDArray[np.float32] | None] | None = None,
    vocabulary: Sequence[str] = (),
    tensors_a_part: int = 0,
) -> Path:
    """A Llama whose `weights` are in the Hugging Face layout. `tensors` replaces, adds, or (None) drops.

    With `tensors_a_part` it is in several files, the first without any; that one's path.
    """
    config = weights.config
    writer = gguf.GGUFWriter(
        path, "llama", split_max_tensors=tensors_a_part, small_first_shard=tensors_a_part > 0
    )
    add_shape(writer, config)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab)
    for key, value in (metadata or {}).items():
        writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    tokens = list(vocabulary) or byte_vocabulary(config.vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_array("tokenizer.ggml.merges", ["a b"])
    writer.add_eos_token_id(2)
    changed = dict(tensors or {})
    for name, _ in tensor_shapes(config):
        stored, values = gguf_tensor(weights, name)
        replaced = changed.pop(stored, values)
        if replaced is not None:
            _add(writer, stored, replaced, kind)
    for name, extra in changed.items():
        if extra is not None:
            _add(writer, name, extra, gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return min(path.parent.glob(f"{path.stem}-00001-of-*.gguf")) if tensors_a_part else path


def gguf_tensor(weights: Weights, name: str) -> tuple[str, NDArray[np.float32]]:
    """The name and the values that a GGUF file holds for a canonical name."""
    values = weights.get(name, "f32")
    *front, last = name.split(".")
    if not front:
        return TOP_NAMES[name], values
    values = values.reshape(values.shape[-2:]) if values.ndim == 3 else values
    if last in ("wq", "wk"):
        values = permute(values, weights.config.heads if last == "wq" else weights.config.kv_heads)
    return f"blk.{front[1]}.{GGUF_NAMES[last]}.weight", values


def _add(
    writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32], kind: gguf.GGMLQuantizationType
) -> None:
    if values.ndim == 1:
        kind = gguf.GGMLQuantizationType.F32
    if kind == gguf.GGMLQuantizationType.F16:
        writer.add_tensor(name, values.astype(np.float16))
    elif kind == gguf.GGMLQuantizationType.F32:
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)


def safetensors_bytes(header: object, body: bytes = b"") -> bytes:
    """A safetensors file with any header at all."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body

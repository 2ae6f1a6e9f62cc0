"""Each family as a GGUF file: names by the gguf library's table, values as llama.cpp's converter has them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from engine.backends import open_backend
from engine.backends.cuda import memory
from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import plan
from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from engine.models.checkpoints.gguf import gguf_config, gguf_weights
from engine.models.checkpoints.gguf_file import read_gguf
from engine.models.config import ModelConfig
from engine.models.rope import FactorScaling, LinearScaling, YarnScaling
from engine.models.storage import Storage
from engine.models.weights import Weights, packed_of
from engine.progress import ignore_progress
from engine.reference import Reference
from tests.engine.models.checkpoints.files import permute
from tests.reference.test_families import (
    GPT_OSS,
    GPT_OSS_YARN,
    LONGROPE,
    PARTIAL,
    QWEN3_MOE,
    TOKENS,
    YARN,
    write_by_transformers,
)
from tests.reference.test_laneformer import relative_error

CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "tied", {"tie_word_embeddings": True}),
    ("qwen2", "untied", {}),
    ("qwen2", "yarn", {"rope_parameters": {**YARN, "rope_theta": 1e6}}),
    ("qwen3", "tied", {"head_dim": 16, "tie_word_embeddings": True}),
    ("smollm3", "unrotated layers", {"num_hidden_layers": 5}),
    ("gemma2", "as published", {"head_dim": 14, "query_pre_attn_scalar": 14, "sliding_window": 6}),
    ("gemma3_text", "windows", {"head_dim": 16, "query_pre_attn_scalar": 16, "num_hidden_layers": 7}),
    ("phi3", "a part of each head", {"rope_parameters": PARTIAL}),
    ("phi3", "longrope", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 96}),
    ("gpt_oss", "as published", {**GPT_OSS, "rope_parameters": GPT_OSS_YARN}),
    ("qwen3_moe", "as published", {**QWEN3_MOE, "norm_topk_prob": True}),
]
ARCHITECTURES = {"gemma3_text": gguf.MODEL_ARCH.GEMMA3, "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE}
KINDS = ("F32", "BF16", "Q8_0", "Q5_1", "Q4_0")
"""Types that the gguf library can write; test_encodings.py reads the others."""


@pytest.mark.parametrize(("family", "what", "changes"), CASES, ids=[f"{f}, {w}" for f, w, _ in CASES])
def test_a_gguf_file_is_the_same_model_as_its_folder(
    tmp_path: Path, family: str, what: str, changes: dict[str, Any]
) -> None:
    theirs = write_by_transformers(tmp_path / "folder", family, {"sliding_window": 9, **changes})
    folder = open_model(str(tmp_path / "folder"))

    file = read_gguf(write(tmp_path / "m.gguf", family, theirs, folder.config))
    config = gguf_config(file, "m")

    assert config.features == folder.config.features
    assert config.windows == folder.config.windows
    assert config.context == folder.config.context
    assert relative_error(logits(gguf_weights(file, config)), logits(folder.weights)) < 1e-5


def test_a_gguf_file_of_gpt_oss_keeps_its_experts_in_mxfp4(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    shape = {**GPT_OSS, **sizes, "rope_parameters": GPT_OSS_YARN}
    theirs = write_by_transformers(tmp_path / "folder", "gpt_oss", shape)
    config = open_model(str(tmp_path / "folder")).config
    kind = gguf.GGMLQuantizationType.MXFP4

    file = read_gguf(write(tmp_path / "m.gguf", "gpt_oss", theirs, config, kind))

    weights = gguf_weights(file, gguf_config(file, "m"))
    matrix = theirs.model.layers[1].mlp.experts.gate_up_proj[3].T[1::2].detach().numpy()
    expected = gguf.quants.dequantize(gguf.quants.quantize(matrix, kind), kind)
    np.testing.assert_array_equal(weights.get("layers.1.experts.3.w_up")[0], expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_gguf_file_may_be_of_any_type(tmp_path: Path, kind: str) -> None:
    changes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    theirs = write_by_transformers(tmp_path / "folder", "qwen2", changes)
    config = open_model(str(tmp_path / "folder")).config

    file = read_gguf(write(tmp_path / "m.gguf", "qwen2", theirs, config, gguf.GGMLQuantizationType[kind]))

    weights = gguf_weights(file, gguf_config(file, "m"))
    matrix = theirs.model.layers[1].mlp.down_proj.weight.detach().numpy()
    packed = gguf.quants.quantize(matrix, gguf.GGMLQuantizationType[kind])
    expected = gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind])
    if kind in ("Q5_1", "Q4_0"):  # the others are not rounded to FP16
        expected = expected.astype(np.float16).astype(np.float32)
    np.testing.assert_array_equal(weights.get("layers.1.w_down")[0], expected)


def logits(weights: Weights) -> NDArray[np.float32]:
    reference = Reference(weights)
    return reference.forward(TOKENS, reference.new_cache(len(TOKENS)))


def write(
    path: Path,
    family: str,
    theirs: Any,
    config: ModelConfig,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
) -> Path:
    """What llama.cpp's converter makes of a model of transformers."""
    architecture = ARCHITECTURES.get(family) or gguf.MODEL_ARCH[family.upper()]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    describe(writer, theirs.config, config)
    names = gguf.get_tensor_name_map(architecture, config.layers)
    for name, tensor in experts_apart(theirs.state_dict(), config):
        if name == "lm_head.weight" and config.tied_head:
            continue
        values = converted(family, name, tensor.float().numpy(), config)
        plain = values.ndim == 1 or name.endswith("bias") or "ffn_gate_inp" in name
        quantized = gguf.GGMLQuantizationType.F32 if plain else kind
        stored = gguf.quants.quantize(values, quantized)
        theirs_name = name if name.startswith("blk.") else names.get_name(name, (".weight", ".bias"))
        writer.add_tensor(theirs_name, stored, raw_dtype=quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def experts_apart(state: dict[str, torch.Tensor], config: ModelConfig) -> Iterator[tuple[str, torch.Tensor]]:
    """`state` with the matrices of experts as [experts, rows, columns], gates and the other half apart."""
    for name, tensor in state.items():
        if ".mlp.experts." not in name:
            yield name.replace("sinks", "sinks.weight"), tensor
            continue
        block, kind = f"blk.{name.split('.')[2]}.ffn_", "bias" if name.endswith("bias") else "weight"
        turned = config.family == "gpt_oss" and kind == "weight"
        values = tensor.swapaxes(1, 2) if turned else tensor
        if "down_proj" in name:
            yield f"{block}down_exps.{kind}", values
            continue
        halves = (values[:, 0::2], values[:, 1::2]) if config.family == "gpt_oss" else values.chunk(2, 1)
        yield f"{block}gate_exps.{kind}", halves[0]
        yield f"{block}up_exps.{kind}", halves[1]


def converted(
    family: str, name: str, values: NDArray[np.float32], config: ModelConfig
) -> NDArray[np.float32]:
    if family in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
        return permute(values, config.heads if "q_proj" in name else config.kv_heads)
    if family.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    return values


def describe(writer: gguf.GGUFWriter, settings: Any, config: ModelConfig) -> None:
    writer.add_block_count(config.layers)
    writer.add_context_length(settings.max_position_embeddings)
    writer.add_embedding_length(config.hidden)
    writer.add_feed_forward_length(settings.intermediate_size)
    if config.experts:
        writer.add_expert_count(config.experts.count)
        writer.add_expert_used_count(config.experts.chosen)
        writer.add_expert_feed_forward_length(config.ffn)
    writer.add_head_count(config.heads)
    writer.add_head_count_kv(config.kv_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.norm_eps)
    writer.add_vocab_size(config.vocab)
    writer.add_rope_freq_base(config.rope.theta)
    writer.add_rope_dimension_count(2 * config.rope.turning or config.head_dim)
    if max(config.windows):
        writer.add_sliding_window(max(config.windows))
    if config.attention_cap:
        writer.add_attn_logit_softcapping(config.attention_cap)
        writer.add_final_logit_softcapping(config.logit_cap)
    match config.rope.scaling:
        case YarnScaling() as yarn:
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(yarn.factor)
            writer.add_rope_scaling_orig_ctx_len(yarn.original_context)
        case LinearScaling(factor):
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(factor)
        case FactorScaling(factors, amplitude):
            writer.add_rope_scaling_attn_factors(amplitude)
            writer.add_rope_scaling_orig_ctx_len(settings.original_max_position_embeddings)
            writer.add_tensor("rope_factors_short.weight", np.array(factors, np.float32))
            writer.add_tensor("rope_factors_long.weight", 2 * np.array(factors, np.float32))


def test_an_fp8_folder_is_the_model_of_its_decoded_matrices(tmp_path: Path) -> None:
    """E4M3 with one scale for each block of 128 x 128, as FP8 releases of Qwen3 have them."""
    import safetensors.torch

    shape = {"hidden_size": 144, "intermediate_size": 260, "num_hidden_layers": 2, "head_dim": 24}
    theirs = write_by_transformers(tmp_path, "qwen3", shape)
    path = tmp_path / "model.safetensors"
    stored, decoded = by_blocks(path)
    safetensors.torch.save_file(stored, path)

    weights = open_model(str(tmp_path)).weights

    assert weights.native == "bf16"
    packed = packed_of(weights, "layers.0.w_down")
    assert packed.scales is not None
    assert packed.scales.shape == (*packed.rows.shape[:-2], 2, 3)  # cut as the rows are, for several GPUs
    theirs.load_state_dict({name: tensor.float() for name, tensor in decoded.items()})
    with torch.no_grad():
        expected = theirs(torch.tensor([TOKENS])).logits[0].numpy()
    assert relative_error(logits(weights), expected) < 1e-5
    model = open_model(str(tmp_path))
    backend = open_backend("cpu", model, options={"threads": 1})
    assert backend.storage("layers.0.w_down") is Storage.FP8_BLOCK
    assert backend.storage("embed") is Storage.BF16
    assert relative_error(backend.logits(TOKENS), expected) < 3e-3
    backend.close()


class PaperDevice:
    """Takes what a GPU would be loaded with, and keeps nothing."""

    def module(self, _image: bytes, names: dict[str, int]) -> dict[str, None]:
        return dict.fromkeys(names)

    def __getattr__(self, _call: str) -> Callable[..., int]:
        return lambda *_args, **_more: 0


def test_an_fp8_number_that_is_none_is_refused_where_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    write_by_transformers(tmp_path, "qwen3", {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32})
    path = tmp_path / "model.safetensors"
    stored, _ = by_blocks(path)
    stored["model.layers.1.mlp.up_proj.weight"].view(torch.uint8)[3, 5] = 0xFF
    safetensors.torch.save_file(stored, path)
    model = open_model(str(tmp_path))
    refusal = "up_proj.weight' holds NaN or infinity: the file is damaged"

    with pytest.raises(CheckpointError, match=refusal):
        open_backend("cpu", model, options={"threads": 1})
    with pytest.raises(CheckpointError, match=refusal):
        logits(model.weights)
    monkeypatch.setattr(memory, "compile_kernel", lambda *_: SimpleNamespace(image=b""))
    chosen = choose_storages(model.weights, shard(model.config, 1))
    assert chosen.named("layers.1.w_up") is Storage.FP8_BLOCK
    layout = make_layout(plan(model.config, 8, chosen.storages), chosen.half, Tuning())
    device: Any = PaperDevice()
    with pytest.raises(CheckpointError, match=refusal):
        memory.load_model(device, layout, model.weights, ignore_progress)


def by_blocks(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """A file's tensors as an FP8 release has them, and what they mean; BF16 but for the projections."""
    import safetensors.torch

    stored, decoded = {}, {}
    for name, tensor in safetensors.torch.load_file(path).items():
        stored[name] = decoded[name] = tensor.to(torch.bfloat16)
        if "_proj" in name:
            stored[name], stored[name + "_scale_inv"], decoded[name] = blockwise(tensor)
    return stored, decoded


def blockwise(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(FP8, scales, the FP32 matrix that the two mean)."""
    rows, columns = matrix.shape
    counts = (-(-rows // 128), -(-columns // 128))
    scales = torch.empty(counts)
    packed = torch.empty((rows, columns), dtype=torch.float8_e4m3fn)
    decoded = torch.empty((rows, columns))
    for i in range(counts[0]):
        for j in range(counts[1]):
            block = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
            scales[i, j] = matrix[block].abs().max() / 448.0
            packed[block] = (matrix[block] / scales[i, j]).to(torch.float8_e4m3fn)
            decoded[block] = packed[block].float() * scales[i, j]
    return packed, scales, decoded

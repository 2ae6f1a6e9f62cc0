"""Mixtures of experts as they are published, against transformers' own classes with the numbers they mean."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from engine.models.storage import Storage
from engine.models.weights import PackedWeights
from tests.reference.test_families import (
    EXPERT_CASES,
    GPT_OSS,
    GPT_OSS_YARN,
    QWEN3_MOE,
    compare,
    write_by_transformers,
)
from tests.reference.test_gguf_families import by_blocks, logits
from tests.reference.test_laneformer import relative_error

LEVELS = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
"""Of E2M1, by its three low bits; the fourth is the sign (OCP Microscaling Formats 1.0, section 5.3.3)."""
PACKED_SHAPE = {**GPT_OSS, "hidden_size": 64, "intermediate_size": 96, "rope_parameters": GPT_OSS_YARN}


def fp4(blocks: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """[..., blocks, 16] bytes and [..., blocks] exponents as numbers [..., blocks * 32], one by one."""
    values = torch.empty(*scales.shape, 32)
    for at in range(16):
        for half, nibble in ((0, blocks[..., at] & 15), (1, blocks[..., at] >> 4)):
            magnitude = torch.tensor(LEVELS)[(nibble & 7).long()]
            values[..., 2 * at + half] = torch.where(nibble >= 8, -magnitude, magnitude)
    return (values * torch.exp2(scales.float() - 127.0)[..., None]).flatten(-2)


def pack_experts(folder: Path) -> dict[str, torch.Tensor]:
    """Replaces the experts' matrices of a GPT-OSS folder by random FP4 blocks; what the matrices mean."""
    path, rng = folder / "model.safetensors", torch.Generator().manual_seed(5)
    stored, meant = {}, {}
    for name, tensor in safetensors.torch.load_file(path).items():
        stored[name] = meant[name] = tensor.to(torch.bfloat16)
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, columns, rows = tensor.shape
            blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=rng)
            scales = torch.randint(118, 124, (experts, rows, columns // 32), generator=rng)
            del stored[name]
            stored[name + "_blocks"] = blocks.to(torch.uint8)
            stored[name + "_scales"] = scales.to(torch.uint8)
            meant[name] = fp4(blocks, scales).transpose(1, 2)
    safetensors.torch.save_file(stored, path)
    return meant


def test_fp4_experts_are_the_model_of_the_numbers_they_mean(tmp_path: Path) -> None:
    theirs = write_by_transformers(tmp_path, "gpt_oss", PACKED_SHAPE)
    meant = pack_experts(tmp_path)

    model = open_model(str(tmp_path))

    theirs.load_state_dict({name: tensor.float() for name, tensor in meant.items()})
    compare(model, theirs)
    assert model.weights.native == "bf16"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_fp4_is_decoded_to_the_bit(tmp_path: Path, dtype: Any) -> None:
    write_by_transformers(tmp_path, "gpt_oss", PACKED_SHAPE)
    meant = pack_experts(tmp_path)

    model = open_model(str(tmp_path))

    gate_up = meant["model.layers.1.mlp.experts.gate_up_proj"][3].T
    down = meant["model.layers.1.mlp.experts.down_proj"][3].T
    for name, expected in (("w_gate", gate_up[0::2]), ("w_up", gate_up[1::2]), ("w_down", down)):
        found = model.weights.get(f"layers.1.experts.3.{name}", dtype)[0]
        single = (found.astype(np.uint32) << 16).view(np.float32) if dtype == "bf16" else found
        np.testing.assert_array_equal(single, expected.numpy())


def test_fp4_is_handed_out_as_ggufs_mxfp4(tmp_path: Path) -> None:
    write_by_transformers(tmp_path, "gpt_oss", PACKED_SHAPE)
    meant = pack_experts(tmp_path)

    weights = open_model(str(tmp_path)).weights

    name = "layers.1.experts.3.w_up"
    assert isinstance(weights, PackedWeights)
    assert weights.storage(name) is Storage.MXFP4
    rows = weights.packed(name).rows
    assert rows.shape == (1, 96, 2 * 17)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.MXFP4)
    expected = meant["model.layers.1.mlp.experts.gate_up_proj"][3].T[1::2]
    np.testing.assert_array_equal(values[0], expected.numpy())


def test_fp4_scales_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_by_transformers(tmp_path, "gpt_oss", PACKED_SHAPE)
    pack_experts(tmp_path)
    path, cut = tmp_path / "model.safetensors", "model.layers.0.mlp.experts.down_proj_scales"
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file({**tensors, cut: tensors[cut][:, :-1].contiguous()}, path)

    with pytest.raises(CheckpointError, match=r"down_proj_blocks.*scales of shape \[5, 63, 3\]"):
        open_model(str(tmp_path))


def test_an_fp4_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    write_by_transformers(tmp_path, "gpt_oss", PACKED_SHAPE)
    pack_experts(tmp_path)
    path, cut = tmp_path / "model.safetensors", "model.layers.0.mlp.experts.down_proj_scales"
    tensors = safetensors.torch.load_file(path)
    tensors[cut][2, 1, 0] = 255
    safetensors.torch.save_file(tensors, path)
    weights = open_model(str(tmp_path)).weights

    weights.get("layers.0.experts.1.w_down")
    with pytest.raises(CheckpointError, match="NaN or infinity"):
        weights.get("layers.0.experts.2.w_down")


def test_fp8_experts_are_the_model_of_their_decoded_matrices(tmp_path: Path) -> None:
    """E4M3 with one scale for each block of 128 x 128, an expert a matrix, as Qwen publishes them."""
    theirs = write_by_transformers(tmp_path, "qwen3_moe", {**QWEN3_MOE, "moe_intermediate_size": 140})
    path = tmp_path / "model.safetensors"
    stored, decoded = by_blocks(path)
    safetensors.torch.save_file(decoded, path)
    expected = logits(open_model(str(tmp_path)).weights)
    safetensors.torch.save_file(stored, path)

    model = open_model(str(tmp_path))

    assert theirs.config.num_experts == model.config.experts.count == 6
    assert relative_error(logits(model.weights), expected) < 1e-5


def test_all_tokens_may_go_to_one_expert(tmp_path: Path) -> None:
    changes = {**GPT_OSS, "num_experts_per_tok": 1, "rope_parameters": GPT_OSS_YARN}
    theirs = write_by_transformers(tmp_path, "gpt_oss", changes)
    route_by_bias(theirs, [0.0, 0.0, 0.0, 50.0, 0.0])
    theirs.save_pretrained(tmp_path)

    compare(open_model(str(tmp_path)), theirs)


@pytest.mark.parametrize(("family", "changes"), [(f, c) for f, w, c in EXPERT_CASES if w == "as published"])
def test_ties_between_equal_experts_give_the_same_sum(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    """Transformers takes any of equal scores, so the experts are equal here, too."""
    theirs = write_by_transformers(tmp_path, family, changes)
    route_by_bias(theirs, [0.0] * 6)
    with torch.no_grad():
        for name, values in theirs.named_parameters():
            if ".mlp.experts." in name:
                values[1:] = values[:1].clone()
    theirs.save_pretrained(tmp_path)

    compare(open_model(str(tmp_path)), theirs)


def route_by_bias(theirs: Any, scores: list[float]) -> None:
    """Routers that give every token the same scores; without a bias they are all 0."""
    with torch.no_grad():
        for name, values in theirs.named_parameters():
            if name.endswith(("mlp.router.weight", "mlp.gate.weight")):
                values.zero_()
            if name.endswith("mlp.router.bias"):
                values.copy_(torch.tensor(scores[: len(values)]))

"""Qwen3's mixtures of experts (30B-A3B, 235B-A22B, Coder): Qwen3 with experts in place of every MLP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.config import Experts, ModelConfig
from engine.models.families.family import Family, FolderFormat, GgufFormat
from engine.models.families.qwen2 import qwen_windows
from engine.models.families.standard import (
    FOLDER_NAMES,
    GGUF_NAMES,
    gguf_experts,
    gguf_fields,
    read_standard,
    read_standard_gguf,
    standard_json,
    windows_json,
)
from engine.models.rope import RopeLayout

_FOLDER_NAMES = replace(
    FOLDER_NAMES,
    layer={**FOLDER_NAMES.layer, "router": "mlp.gate.weight"},
    expert={
        "w_gate": "mlp.experts.{}.gate_proj.weight",
        "w_up": "mlp.experts.{}.up_proj.weight",
        "w_down": "mlp.experts.{}.down_proj.weight",
    },
)


def _read(fields: Fields, name: str) -> ModelConfig:
    if fields.integer("decoder_sparse_step", 1) != 1:
        raise fields.refuse("decoder_sparse_step", "1: every layer has experts")
    if fields.integers("mlp_only_layers"):
        raise fields.refuse("mlp_only_layers", "empty: every layer has experts")
    experts = Experts(
        count=fields.integer("num_experts", fields.integer("num_local_experts", 128)),
        chosen=fields.integer("num_experts_per_tok", 8),
        renormalise=fields.flag("norm_topk_prob", False),
    )
    return read_standard(
        fields,
        name,
        "qwen3_moe",
        qk_norm=True,
        head_dim=fields.integer("head_dim", 128),
        ffn=fields.integer("moe_intermediate_size"),
        experts=experts,
        windows=qwen_windows(fields),
    )


def _write(config: ModelConfig) -> dict[str, Any]:
    entries = {"moe_intermediate_size": config.ffn, "decoder_sparse_step": 1, "mlp_only_layers": []}
    if config.experts:
        entries |= {
            "num_experts": config.experts.count,
            "num_experts_per_tok": config.experts.chosen,
            "norm_topk_prob": config.experts.renormalise,
        }
    return standard_json(config, "qwen3_moe", "Qwen3MoeForCausalLM") | windows_json(config) | entries


def _read_gguf(file: GgufFile, name: str) -> ModelConfig:
    fields = gguf_fields(file)
    return read_standard_gguf(
        file,
        name,
        "qwen3_moe",
        RopeLayout.HALF,
        qk_norm=True,
        ffn=fields.integer("expert_feed_forward_length"),
        experts=gguf_experts(fields),
    )


FAMILY = Family(
    name="qwen3_moe",
    title="Qwen3 with experts (30B-A3B, Coder)",
    folder=FolderFormat(("qwen3_moe",), _read, _write, _FOLDER_NAMES),
    gguf=GgufFormat("qwen3moe", _read_gguf, GGUF_NAMES),
)

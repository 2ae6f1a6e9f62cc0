"""The GGUF file that llama.cpp is timed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from gguf import GGUFReader

from engine.models.catalogue import open_model
from engine.models.checkpoints.gguf_file import read_gguf
from engine.models.families import family_of
from engine.models.presets import load_preset
from engine.models.probe import SMALL, plain
from engine.models.weights import PackedWeights, RandomWeights
from tools.bench_peers.gguf import precision, write_gguf
from tools.bench_peers.peer import PeerUnavailable


def test_the_file_holds_the_weights_that_ours_runs(tmp_path: Path) -> None:
    config = plain(SMALL)
    write_gguf(tmp_path / "small.gguf", RandomWeights(config, 0))
    reader = GGUFReader(tmp_path / "small.gguf")
    tensors = {tensor.name: tensor.data for tensor in reader.tensors}
    weights = RandomWeights(config, 0)
    assert np.array_equal(tensors["blk.3.ffn_down.weight"], weights.get("layers.3.w_down", "f16")[0])
    assert np.array_equal(tensors["output.weight"], weights.get("head", "f16"))
    assert np.array_equal(tensors["blk.0.attn_norm.weight"], weights.get("layers.0.attn_norm"))
    assert reader.fields["llama.attention.head_count_kv"].contents() == config.kv_heads
    assert len(tensors) == 3 + 9 * config.layers


def test_the_scaling_of_llama_3_is_written_as_factors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(
        plain(SMALL), rope=load_preset("llama-3.2-1b").config.rope, head_dim=64, heads=4, kv_heads=2
    )
    write_gguf(tmp_path / "small.gguf", RandomWeights(config, 0))
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "small.gguf").tensors}
    factors = tensors["rope_freqs.weight"]
    assert (len(factors), factors[0], factors[-1]) == (32, 1.0, 32.0)


def test_a_model_with_lanes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="no plain Llama"):
        write_gguf(tmp_path / "small.gguf", RandomWeights(SMALL, 0))


def test_a_mixture_s_file_is_read_back_as_the_model_that_ours_runs(tmp_path: Path) -> None:
    model = open_model("random:tiny-experts")
    weights = cast("PackedWeights", model.weights)
    write_gguf(tmp_path / "experts.gguf", weights)

    read = family_of("gpt_oss").gguf
    assert read is not None
    file = read_gguf(tmp_path / "experts.gguf")
    config = read.read(file, "experts")
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "experts.gguf").tensors}

    assert replace(config, name=model.config.name, eos_ids=model.config.eos_ids) == model.config
    down = tensors["blk.3.ffn_down_exps.weight"]
    assert (down.tensor_type.name, down.data.shape) == ("MXFP4", (6, 96, 2 * 17))
    assert np.array_equal(down.data[5], weights.packed("layers.3.experts.5.w_down").rows[0])
    assert np.array_equal(
        tensors["blk.1.ffn_up_exps.bias"].data[2], weights.get("layers.1.experts.2.b_up")[0]
    )
    assert tensors["blk.0.ffn_gate_inp.weight"].data.dtype == np.float32
    assert set(tensors) == {place.name for place in read.places(config).values()}


@pytest.mark.parametrize("preset", ["qwen2.5-coder-1.5b", "qwen3-8b", "qwen3-30b-a3b"])
def test_a_qwen_s_file_is_read_back_as_the_model_that_ours_runs(tmp_path: Path, preset: str) -> None:
    shape = load_preset(preset).config
    experts = shape.experts and replace(shape.experts, count=4, chosen=2)
    config = replace(
        shape, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=32, ffn=96, vocab=128, windows=(),
        experts=experts, bos_id=None, eos_ids=(1,),
    )  # fmt: skip
    weights = RandomWeights(config, 0)
    write_gguf(tmp_path / "qwen.gguf", weights)

    form = family_of(config.family).gguf
    assert form is not None
    read = form.read(read_gguf(tmp_path / "qwen.gguf"), "qwen")
    tensors = {tensor.name: tensor for tensor in GGUFReader(tmp_path / "qwen.gguf").tensors}

    assert replace(read, name=config.name, bos_id=config.bos_id, eos_ids=config.eos_ids) == config
    assert set(tensors) == {place.name for place in form.places(config).values()}
    assert precision(weights) == "F16"


def test_a_large_mixture_repeats_its_first_layer_and_expert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.bench_peers.gguf._MOST_DISTINCT", 0)
    weights = cast("PackedWeights", open_model("random:tiny-experts").weights)

    write_gguf(tmp_path / "experts.gguf", weights)

    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "experts.gguf").tensors}
    first = weights.packed("layers.0.experts.0.w_up").rows[0]
    assert all(np.array_equal(expert, first) for expert in tensors["blk.2.ffn_up_exps.weight"])
    assert np.array_equal(tensors["output.weight"], weights.get("head", "f16"))

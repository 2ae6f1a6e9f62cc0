"""The GGUF file that llama.cpp is timed on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

from engine.models.presets import load_preset
from engine.models.probe import SMALL, plain
from engine.models.weights import RandomWeights
from tools.bench_peers.gguf import write_gguf
from tools.bench_peers.peer import PeerUnavailable


def test_the_file_holds_the_weights_that_ours_runs(tmp_path: Path) -> None:
    config = plain(SMALL)
    write_gguf(tmp_path / "small.gguf", config)
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
    from dataclasses import replace

    config = replace(
        plain(SMALL), rope=load_preset("llama-3.2-1b").config.rope, head_dim=64, heads=4, kv_heads=2
    )
    write_gguf(tmp_path / "small.gguf", config)
    tensors = {tensor.name: tensor.data for tensor in GGUFReader(tmp_path / "small.gguf").tensors}
    factors = tensors["rope_freqs.weight"]
    assert (len(factors), factors[0], factors[-1]) == (32, 1.0, 32.0)


def test_a_model_with_lanes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PeerUnavailable, match="no plain Llama"):
        write_gguf(tmp_path / "small.gguf", SMALL)

"""A Hugging Face folder as a whole: what fits together and what does not."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from numpy.typing import NDArray

from engine.errors import CheckpointError
from engine.models.catalogue import open_model
from engine.models.checkpoints.write import write_checkpoint
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights

TENSORS = "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(RandomWeights(load_preset("tiny-llama").config), tmp_path / "m")


def change_tensors(folder: Path, **changes: NDArray[np.float16] | None) -> None:
    """Replaces tensors, adds new ones, drops those that are None."""
    tensors = {**safetensors.numpy.load_file(folder / TENSORS), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    safetensors.numpy.save_file(kept, folder / TENSORS)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.1.mlp.up_proj.weight": None})

    with pytest.raises(CheckpointError, match=r"lacks 1 of 30 tensors, first 'layers\.1\.w_up'"):
        open_model(str(folder))


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    change_tensors(folder, **{"model.norm.weight": np.ones(95, np.float16)})

    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight' has shape \[95\].*asks for \[96\]"):
        open_model(str(folder))


def test_a_bias_is_refused_and_not_ignored(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.0.self_attn.q_proj.bias": np.ones(96, np.float16)})

    with pytest.raises(
        CheckpointError, match=r"no place for, such as 'model\.layers\.0\.self_attn\.q_proj\.bias'"
    ):
        open_model(str(folder))


def test_stored_rotary_tables_are_ignored(folder: Path) -> None:
    change_tensors(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(8, np.float16)})

    assert open_model(str(folder)).config.layers == 3


def test_a_copy_of_a_tied_head_is_ignored(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": True}))

    model = open_model(str(folder))

    assert model.config.tied_head
    with pytest.raises(CheckpointError, match="has no tensor 'head'"):
        model.weights.get("head")


def test_nan_is_found_when_the_tensor_is_read(folder: Path) -> None:
    broken = np.ones(96, np.float16)
    broken[3] = np.nan
    change_tensors(folder, **{"model.norm.weight": broken})
    model = open_model(str(folder))

    with pytest.raises(CheckpointError, match=r"model\.safetensors: tensor 'model\.norm\.weight' holds NaN"):
        model.weights.get("norm")


def test_a_truncated_file_is_found_before_anything_is_read(folder: Path) -> None:
    content = (folder / TENSORS).read_bytes()
    (folder / TENSORS).write_bytes(content[: len(content) // 2])

    with pytest.raises(CheckpointError, match="cut short or corrupt"):
        open_model(str(folder))


def test_matrices_of_several_types_are_kept_as_float32(folder: Path) -> None:
    change_tensors(folder, **{"lm_head.weight": np.ones((320, 96), np.float32)})  # type: ignore[arg-type]

    assert open_model(str(folder)).weights.native == "f32"


def test_norms_of_another_type_do_not_change_the_type_of_the_model(folder: Path) -> None:
    scale = np.linspace(0.9, 1.1, 96, dtype=np.float32)
    change_tensors(folder, **{"model.norm.weight": scale})  # type: ignore[arg-type]

    weights = open_model(str(folder)).weights

    assert weights.native == "f16"
    np.testing.assert_array_equal(weights.get("norm"), scale)


def test_another_architecture_is_named(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "mamba2"}')

    with pytest.raises(
        CheckpointError,
        match="model_type is 'mamba2'; it must be one of gemma2,",
    ):
        open_model(str(folder))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100000, '"llama"'])
def test_a_config_that_is_none_is_one_error(folder: Path, text: str) -> None:
    (folder / "config.json").write_text(text)

    with pytest.raises(CheckpointError, match=r"config\.json"):
        open_model(str(folder))


def test_a_folder_without_config_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        open_model(str(tmp_path))

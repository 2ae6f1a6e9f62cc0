"""Of Gemma 3 with images the text model is read, as transformers' own class computes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from engine.models.catalogue import open_model
from engine.models.checkpoints.folder import folder_config
from tests.reference.test_families import SHAPE, compare

TEXT = {**SHAPE, "head_dim": 12, "num_hidden_layers": 7, "sliding_window": 6}
EYES = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {"image_size": 28, "patch_size": 14}


def write(folder: Path) -> Any:
    torch.manual_seed(11)
    config = transformers.Gemma3Config(
        text_config=TEXT, vision_config={**EYES, **IMAGES}, mm_tokens_per_image=1
    )
    model = transformers.Gemma3ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for values in model.parameters():
            values += 0.2 * torch.randn_like(values)
    model.save_pretrained(folder)
    return model


def rename(folder: Path, old: str, new: str) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    save_file({name.replace(old, new, 1): tensor for name, tensor in tensors.items()}, path)


@pytest.mark.parametrize("order", ["as published", "as transformers once wrote it"])
def test_the_text_model_beside_what_sees_images_is_read(tmp_path: Path, order: str) -> None:
    theirs = write(tmp_path)
    if order != "as published":
        rename(tmp_path, "language_model.model.", "model.language_model.")
        rename(tmp_path, "vision_tower.", "model.vision_tower.")

    model = open_model(str(tmp_path))

    assert model.config.family == "gemma3"
    compare(model, theirs)


def test_what_a_description_leaves_out_is_as_in_transformers_class(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    write(tmp_path)
    entries = json.loads(path.read_text())
    published = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    }
    path.write_text(json.dumps({**entries, "text_config": published}))
    (tmp_path / "model.safetensors").unlink()

    config = folder_config(tmp_path, "gemma-3-4b")
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab) == (8, 4, 256, 262208)
    assert config.context == 131072
    assert config.windows[:7] == (1024,) * 5 + (0, 1024)
    assert config.parameters == 3_880_263_168

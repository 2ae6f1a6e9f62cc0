"""A Hugging Face folder: its config.json decides which family reads it."""

from __future__ import annotations

from pathlib import Path

from engine.errors import CheckpointError
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.json_file import read_object
from engine.models.checkpoints.safetensors_file import read_folder, weight_files
from engine.models.checkpoints.stored import StoredWeights, place_tensors
from engine.models.config import ModelConfig
from engine.models.families import family_of, folder_format

_IGNORED = ("rotary_emb.inv_freq", "freqs_cis")
"""Tables that older files store and that follow from the configuration."""


def folder_config(folder: Path, name: str) -> ModelConfig:
    """The shape that a folder's config.json declares. Raises CheckpointError."""
    fields = _read_config(folder)
    return folder_format(fields.word("model_type"), fields.source).read(fields, name)


def folder_weights(folder: Path, config: ModelConfig) -> tuple[StoredWeights, list[Path]]:
    """The weights of a folder and the files they lie in.

    Raises CheckpointError for a tensor that is missing, misshapen or unknown.
    """
    own_name = family_of(config.family).folder.own_name
    stored = {ours: tensor for name, tensor in read_folder(folder).items() if (ours := own_name(name))}

    def spare(name: str) -> bool:
        return name.endswith(_IGNORED) or (config.tied_head and name == "lm_head.weight")

    places = family_of(config.family).folder.places(config)
    tensors = place_tensors(places, stored, spare, folder.name)
    return StoredWeights(config, tensors), weight_files(stored)


def _read_config(folder: Path) -> Fields:
    path = folder / "config.json"
    try:
        return Fields(str(path), read_object(path))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error

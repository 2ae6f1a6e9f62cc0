"""A GGUF file: its architecture decides which family reads it."""

from __future__ import annotations

from engine.errors import CheckpointError
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.checkpoints.stored import StoredWeights, place_tensors
from engine.models.config import ModelConfig
from engine.models.families import family_of, gguf_format
from engine.models.families.rope_entries import GGUF_FACTORS, GGUF_LONG_FACTORS, GGUF_SHORT_FACTORS

_ROTARY = (GGUF_FACTORS, GGUF_LONG_FACTORS, GGUF_SHORT_FACTORS)


def gguf_config(file: GgufFile, name: str) -> ModelConfig:
    """The shape that a GGUF file declares. Raises CheckpointError if no family reads it."""
    return gguf_format(file.metadata.get("general.architecture"), file.path.name).read(file, name)


def gguf_weights(file: GgufFile, config: ModelConfig) -> StoredWeights:
    """The weights of a GGUF file. Raises CheckpointError for a tensor that is missing or unknown."""
    family = family_of(config.family)
    if family.gguf is None:
        raise CheckpointError(f"{file.path.name}: models of the family {family.name} do not come in GGUF")
    places = family.gguf.places(config)
    tensors = place_tensors(places, file.tensors, lambda name: name in _ROTARY, file.path.name)
    return StoredWeights(config, tensors)

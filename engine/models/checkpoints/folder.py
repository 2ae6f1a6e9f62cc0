"""A Hugging Face folder: its config.json decides which family reads it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.errors import CheckpointError
from engine.models.checkpoints import laneformer, llama
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.safetensors_file import read_folder, weight_files
from engine.models.checkpoints.stored import StoredWeights
from engine.models.config import ModelConfig

_MAX_CONFIG = 16 << 20
_IGNORED = ("rotary_emb.inv_freq", "freqs_cis")
"""Tables that older files store and that follow from the configuration."""


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of models describes itself."""

    read: Callable[[Fields, str], ModelConfig]
    names: Callable[[ModelConfig], dict[str, str]]


_LLAMA = Family(llama.read_llama_config, llama.llama_names)
_LANEFORMER = Family(laneformer.read_laneformer_config, laneformer.laneformer_names)
_FAMILIES = dict.fromkeys(llama.MODEL_TYPES, _LLAMA) | dict.fromkeys(laneformer.MODEL_TYPES, _LANEFORMER)


def folder_config(folder: Path, name: str) -> ModelConfig:
    """The shape that a folder's config.json declares. Raises CheckpointError."""
    fields = _read_config(folder)
    return _family(fields).read(fields, name)


def folder_weights(folder: Path, config: ModelConfig) -> tuple[StoredWeights, list[Path]]:
    """The weights of a folder and the files they lie in.

    Raises CheckpointError for a tensor that is missing, misshapen or unknown.
    """
    names = _family(_read_config(folder)).names(config)
    stored = read_folder(folder)
    spare = {"lm_head.weight"} if config.tied_head else set()
    unknown = set(stored) - set(names.values()) - spare
    unknown = {n for n in unknown if not n.endswith(_IGNORED)}
    if unknown:
        raise CheckpointError(
            f"{folder.name} holds {len(unknown)} tensors that its configuration has no place for, such as"
            f" {min(unknown)!r} (biases, experts or extra norms): such a variant is not supported"
        )
    tensors = {ours: stored[theirs] for ours, theirs in names.items() if theirs in stored}
    return StoredWeights(config, tensors), weight_files(stored)


def _family(fields: Fields) -> Family:
    kind = fields.word("model_type")
    if kind not in _FAMILIES:
        raise fields.refuse("model_type", f"one of {', '.join(_FAMILIES)}")
    return _FAMILIES[kind]


def _read_config(folder: Path) -> Fields:
    path = folder / "config.json"
    try:
        if path.stat().st_size > _MAX_CONFIG:
            raise CheckpointError(f"{path} has {path.stat().st_size} bytes; allowed are {_MAX_CONFIG}")
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(f"{path} does not hold a JSON object")
    return Fields(str(path), entries)

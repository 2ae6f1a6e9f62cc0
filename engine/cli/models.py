"""`models`: what can be run, and how to get what is not here."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from engine.cli.options import Commands, command
from engine.cli.terminal import print_json, table
from engine.models.catalogue import list_models


def add(commands: Commands) -> None:
    command(commands, "models", "list the models that have a name, and which are on this machine", run)


def run(args: argparse.Namespace) -> int:
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

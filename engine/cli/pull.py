"""`pull`: get a model's weights."""

from __future__ import annotations

import argparse

from engine.cli.options import Commands, command
from engine.cli.terminal import ProgressBar, print_json
from engine.models.catalogue import needs_pull, pull


def add(commands: Commands) -> None:
    parser = command(commands, "pull", "get the weights of a model, checked against their checksum", run)
    parser.add_argument(
        "name",
        metavar="NAME",
        help="a preset (`models` lists them), or OWNER/NAME[@REVISION] of the Hugging Face Hub;"
        " files and random weights need no pull",
    )


def run(args: argparse.Namespace) -> int:
    if not needs_pull(args.name):
        if args.json:
            print_json({"name": args.name, "path": None})
        else:
            print(f"{args.name} needs no pull")
        return 0
    with ProgressBar(args.name) as bar:
        place = pull(args.name, bar)
    if args.json:
        print_json({"name": args.name, "path": str(place)})
    else:
        print(place)
    return 0

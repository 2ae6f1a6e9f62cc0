"""`cache`: what is kept on disk so that the next start is quick, and how to drop it."""

from __future__ import annotations

import argparse
from pathlib import Path

from engine import settings
from engine.cli.options import Commands, command
from engine.cli.terminal import print_json, table


def add(commands: Commands) -> None:
    parser = command(commands, "cache", "show what is kept to start sooner: decoded weights, kernels", run)
    parser.add_argument("--clear", action="store_true", help="remove it all; it is made again when needed")


def run(args: argparse.Namespace) -> int:
    found = {"weights": settings.weights_dir(), "kernels": settings.home() / "kernels"}
    files = {kind: _files(folder) for kind, folder in found.items()}
    sizes = {kind: sum(path.stat().st_size for path in paths) for kind, paths in files.items()}
    if args.clear:
        for path in (path for paths in files.values() for path in paths):
            path.unlink(missing_ok=True)
    if args.json:
        print_json([{"kind": kind, "files": len(files[kind]), "bytes": size} for kind, size in sizes.items()])
        return 0
    rows = [[kind, str(len(files[kind])), f"{size / 1e6:,.1f} MB"] for kind, size in sizes.items()]
    print(table(["removed" if args.clear else "kept", "files", "size"], rows))
    return 0


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

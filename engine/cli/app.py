"""The parser, and the one place that turns what went wrong into a line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from engine.errors import EngineError

USER_ERROR = 2
INTERRUPTED = 130
"""128 + SIGINT, as a shell reports it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE."""

_COMMANDS = ("models", "pull", "generate", "score", "bench", "roofline", "worker", "check", "cache")


def parser(only: str = "") -> argparse.ArgumentParser:
    """For all commands, or for one: each is a module, and they import much that a worker's start need not."""
    top = argparse.ArgumentParser(
        prog="monolane",
        description="Monolane: the decode speed of one request. Pull a model, run it, measure it.",
        epilog="Start with: monolane check (in a checkout: python -m engine check)",
    )
    commands = top.add_subparsers(title="commands", dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        if only in ("", name):
            import_module(f"engine.cli.{name}").add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. 0 is success, 1 an answer of "no", 2 something the caller can change."""
    given = sys.argv[1:] if argv is None else list(argv)
    args = parser(given[0] if given and given[0] in _COMMANDS else "").parse_args(given)
    try:
        code = int(args.run(args))
        sys.stdout.flush()
    except EngineError as error:
        print(f"monolane {args.command}: {error}", file=sys.stderr)
        return USER_ERROR
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; what is still buffered must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code

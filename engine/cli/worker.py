"""`worker`: own a model and serve it through Redis until told to end."""

from __future__ import annotations

import argparse
import socket

from engine import settings
from engine.cli.options import Commands, add_model_flags, backend_of, command, model_of
from engine.cli.terminal import print_json


def add(commands: Commands) -> None:
    parser = command(
        commands, "worker", "serve a model to the web processes through Redis, until SIGTERM", run
    )
    parser.add_argument("--redis", default=settings.redis_url(), metavar="URL", help="default: REDIS_URL")
    parser.add_argument(
        "--name", default=f"{socket.gethostname()}-0", metavar="NAME",
        help="stable across restarts: a worker finds its unfinished request by it (default: %(default)s)",
    )  # fmt: skip
    add_model_flags(parser)


def run(args: argparse.Namespace) -> int:
    from engine.serving.worker import Worker  # Redis is needed by no other command

    model = model_of(args)
    with backend_of(args, model) as backend:
        if args.json:
            print_json({"worker": args.name, "model": model.config.name, "backend": backend.name})
        Worker(args.redis, model, backend, args.name).run()
    return 0

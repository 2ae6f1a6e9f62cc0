"""`worker`: own one or several models and serve them through Redis until told to end."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from engine import settings
from engine.backends import AUTO, BACKENDS, wake
from engine.cli.options import Commands, add_model_flags, command, devices_of, options_of
from engine.garbage import collect_rarely

SWITCH_S = 0.0005
"""How long one thread may keep the others from the interpreter: a token must not wait for a heartbeat."""
_PACED = "paced"
"""Emits text at a chosen speed without a model: only a worker takes it, to measure the web path."""


def add(commands: Commands) -> None:
    parser = command(
        commands, "worker", "serve models to the web processes through Redis, until SIGTERM", run
    )
    parser.add_argument("--redis", default=settings.redis_url(), metavar="URL", help="default: REDIS_URL")
    parser.add_argument(
        "--name", default="", metavar="NAME",
        help="the same after a restart, and no other worker's: it finds its unfinished request by it"
        " (default: from host, model and backend)",
    )  # fmt: skip
    parser.add_argument(
        "--rows", type=int, choices=range(1, settings.MOST_ROWS + 1), default=None, metavar="N",
        help="take up to N requests at once, where the backend can: they share the read of the weights"
        " (default: MONOLANE_ROWS, or 1)",
    )  # fmt: skip
    parser.add_argument(
        "--fewer-devices", action=argparse.BooleanOptionalAction, default=None,
        help="serve on as many devices as answer where --devices do not, as after one was lost"
        " (default: MONOLANE_FEWER_DEVICES, or end with the reason)",
    )  # fmt: skip
    parser.add_argument(
        "--pin", action="append", default=None, type=Path, metavar="FILE",
        help="a text, or chat messages in a .json file, that many prompts begin with: read at the start and"
        " kept for everybody; may be given several times (default: MONOLANE_PIN)",
    )  # fmt: skip
    parser.add_argument(
        "--keep-prefixes", action=argparse.BooleanOptionalAction, default=None,
        help="go on from kept prompts after a restart, too: their tokens are written under MONOLANE_HOME"
        " (default: MONOLANE_KEEP_PREFIXES, or not)",
    )  # fmt: skip
    parser.add_argument(
        "--resident-mib", type=int, default=None, metavar="MIB",
        help="what the weights of several models may take of memory together; the least recently used make"
        " room (default: MONOLANE_RESIDENT_MIB, or half of the memory, or what the GPUs hold)",
    )  # fmt: skip
    add_model_flags(parser, backends=(AUTO, *BACKENDS, _PACED), several_models=True)


def run(args: argparse.Namespace) -> int:
    settings.git_sha()  # a wrong one is refused before a model is opened for nothing
    threading.Thread(target=wake, args=(args.backend,), name="wake", daemon=True).start()
    from engine.serving.pinning import pinned_prompt
    from engine.serving.worker import Worker  # no other command needs Redis

    _log_to_stderr(as_json=args.json)
    sys.setswitchinterval(SWITCH_S)
    collect_rarely()
    model, *more = args.model or [settings.default_model(), *settings.more_models()]
    Worker(
        args.redis,
        model,
        args.backend,
        args.name,
        devices=devices_of(args),
        options=options_of(args),
        rows=settings.rows() if args.rows is None else args.rows,
        pinned=[pinned_prompt(path) for path in (settings.pinned() if args.pin is None else args.pin)],
        remember_in=settings.prefixes_dir() if _keeps_prefixes(args) else None,
        fewer_devices=settings.fewer_devices() if args.fewer_devices is None else args.fewer_devices,
        more_models=more,
        resident_bytes=settings.resident_bytes() if args.resident_mib is None else args.resident_mib << 20,
    ).run()
    return 0


def _keeps_prefixes(args: argparse.Namespace) -> bool:
    return settings.keeps_prefixes() if args.keep_prefixes is None else bool(args.keep_prefixes)


def _log_to_stderr(*, as_json: bool) -> None:
    """A worker's output is its log; with --json each line is one JSON object."""
    handler = logging.StreamHandler()
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter(line))
    logging.basicConfig(level=logging.INFO, handlers=[handler])


class JsonLines(logging.Formatter):
    """One JSON object a record, as the web processes write them."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)

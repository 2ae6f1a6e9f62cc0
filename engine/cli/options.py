"""Flags that several commands share, and what they stand for."""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine import settings
from engine.backends import AUTO, BACKENDS, open_backend
from engine.backends.base import Backend
from engine.cli.terminal import ProgressBar
from engine.errors import EngineError
from engine.kv_cache import OPTION as CACHE
from engine.kv_cache import CacheFormat
from engine.measuring.environment import git_facts
from engine.models.catalogue import Model, open_model
from engine.sampling import OPTIONS, SamplingParams

Commands = Any
"""argparse's own type for sub-commands is private."""


class UsageError(EngineError):
    """Flags that parse, but make no sense together or on this machine."""


def command(commands: Commands, name: str, help_line: str, run: Callable[[argparse.Namespace], int]) -> Any:
    """A sub-command with the flag that every command has."""
    parser = commands.add_parser(name, help=help_line, description=help_line[0].upper() + help_line[1:] + ".")
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print one JSON value on stdout")
    return parser


def add_model_flags(
    parser: Any, *, backends: Sequence[str] = (AUTO, *BACKENDS), several_models: bool = False
) -> None:
    """With `several_models` the flag may be repeated, and `args.model` is a list, or None without it."""
    group = parser.add_argument_group("what runs, and on what")
    several = "; may be given several times: the first is opened at the start, others when they are asked for"
    group.add_argument(
        "--model",
        action="append" if several_models else "store",
        default=None if several_models else settings.default_model(),
        metavar="NAME|PATH",
        help="a preset, random:PRESET[:SEED], hf:OWNER/NAME[@REVISION][:FILE], a Hugging Face folder,"
        + (
            f" or a .gguf file{several} (default: MONOLANE_MODEL and MONOLANE_MODELS)"
            if several_models
            else " or a .gguf file (default: %(default)s)"
        ),
    )
    group.add_argument(
        "--backend",
        default=settings.default_backend(),
        choices=backends,
        help="auto takes the fastest that this machine can run (default: %(default)s)",
    )
    group.add_argument(
        "--devices",
        type=int,
        default=None,
        metavar="N",
        help="GPUs, or virtual devices of the CPU (default: MONOLANE_DEVICES, or 1)",
    )
    group.add_argument(
        "--cache",
        choices=tuple(CacheFormat),
        default=None,
        help="how keys and values are kept: fp8 takes half the memory and rounds them to E4M3 (default:"
        " MONOLANE_CACHE, or fp16)",
    )
    group.add_argument(
        "--option",
        action="append",
        default=[],
        type=key_value,
        metavar="KEY=VALUE",
        help="an option of the backend, such as threads=2; may be given several times",
    )


def add_commit_flag(parser: Any) -> None:
    parser.add_argument(
        "--git-sha",
        default="",
        metavar="SHA",
        help="the commit of this code, in place of asking the repository (default: MONOLANE_GIT_SHA)",
    )


def commit_of(args: argparse.Namespace) -> str:
    """The commit that the flag names. Raises UsageError if it is none, or the repository says otherwise."""
    given = str(args.git_sha)
    if given and not settings.COMMIT.fullmatch(given):
        raise UsageError(f"--git-sha is {given!r}; a commit is 7 to 64 hexadecimal digits")
    found = str(git_facts(Path(__file__).parent).get("sha", ""))
    if given and found and not found.startswith(given):
        raise UsageError(f"--git-sha is {given}, but this is a checkout of {found}: leave the flag out")
    return given or settings.git_sha()


def add_sampling_flags(parser: Any) -> None:
    group = parser.add_argument_group("how tokens are chosen")
    for option in OPTIONS:
        drawn = option.name == "seed"
        group.add_argument(
            "--" + option.name.replace("_", "-"),
            type=option.kind,
            default=None if drawn else option.default,
            metavar=option.name[-1].upper(),
            help=option.help[0].lower() + option.help[1:] + ("" if drawn else " (default: %(default)s)"),
        )
    group.add_argument(
        "--logit-bias",
        action="append",
        default=[],
        type=key_value,
        metavar="ID=BIAS",
        help="added to the logit of a token id; may be given several times",
    )


def sampling(args: argparse.Namespace, *, seed: int | None = None) -> SamplingParams:
    """The sampling that the flags ask for; without --seed, `seed`, or else one drawn now."""
    given = args.seed if args.seed is not None else seed
    if given is None:
        given = 0 if args.temperature == 0 else secrets.randbits(32)
    values = {option.name: getattr(args, option.name) for option in OPTIONS}
    return SamplingParams(**values | {"seed": given, "logit_bias": args.logit_bias})


def model_of(args: argparse.Namespace) -> Model:
    return open_model(args.model)


def devices_of(args: argparse.Namespace) -> int:
    return settings.default_devices() if args.devices is None else int(args.devices)


def options_of(args: argparse.Namespace) -> dict[str, Any]:
    """The backend's options. Raises ConfigError for a MONOLANE_CACHE that is none."""
    options = dict(args.option)
    cache = args.cache or (None if CACHE in options else settings.cache_format())
    return options if cache is None else {**options, CACHE: str(cache)}


@contextmanager
def backend_of(args: argparse.Namespace, model: Model, rows: int = 1) -> Iterator[Backend]:
    """The backend that the flags name, loaded with `model`; closed at the end."""
    with ProgressBar(model.config.name) as bar:
        backend = open_backend(
            args.backend, model, devices=devices_of(args), options=options_of(args), rows=rows, progress=bar
        )
    try:
        yield backend
    finally:
        backend.close()


def key_value(text: str) -> tuple[str, Any]:
    """KEY=VALUE, the value as a number or a truth value where it reads as one."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, _convert(value)


def _convert(value: str) -> Any:
    named: dict[str, bool] = {"true": True, "false": False}
    if value.lower() in named:
        return named[value.lower()]
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def read_text(path: str) -> str:
    """A file's text; "-" is standard input. Raises UsageError, naming the file."""
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text (byte {error.start})") from error


def write_text(path: str, text: str) -> None:
    """Raises UsageError, naming the file."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def stop_ids(model: Model) -> frozenset[int]:
    """Tokens after which the model has nothing more to say."""
    known: Sequence[int] = model.config.eos_ids
    return frozenset(known) | (model.tokenizer.eos_ids if model.tokenizer is not None else frozenset())

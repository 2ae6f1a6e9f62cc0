"""`manage.py import_results FILES…`: loads measurements, other tools' results, peers and notes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.measurements.foreign import Told
from dashboard.measurements.importing import Imported, import_files

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
KINDS = ("*.json", "peers/*.jsonl", "notes/*.json", "traces/*.trace.json.gz")
"""In this order: a note finds the configurations that it is about, a trace its run."""


class Command(BaseCommand):
    help = (
        "Loads measurements (schema 1), results of llama-bench, `vllm bench serve` and guidellm, peers"
        " (.jsonl), notes and traces (.trace.json.gz); without FILES, those of benchmarks/."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("files", nargs="*", type=Path, metavar="FILES")
        for name, what in (("model", "our name of the model"), ("hardware", "the device")):
            parser.add_argument(f"--{name}", default="", help=f"{what} in another tool's results")
        parser.add_argument("--context", type=int, help="tokens before those that another tool measured")

    def handle(self, *_: Any, **options: Any) -> None:
        files: list[Path] = options["files"] or [f for kind in KINDS for f in sorted(BENCHMARKS.glob(kind))]
        outcomes = import_files(
            paths=files, told=Told(options["model"], options["hardware"], options["context"])
        )
        for outcome in outcomes:
            out = self.stderr if outcome.error else self.stdout
            out.write(_line(outcome))
        if not files:
            self.stdout.write(f"There are no measurement files in {BENCHMARKS}.")
        bad = sum(bool(o.error) for o in outcomes)
        if bad:
            raise CommandError(
                f"{bad} of {len(outcomes)} file{'' if len(outcomes) == 1 else 's'} could not be imported; "
                "each line above says why."
            )


def _line(outcome: Imported) -> str:
    if outcome.error:
        return outcome.error
    return f"{outcome.path}: {outcome.added} added, {outcome.known} already known"

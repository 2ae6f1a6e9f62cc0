"""`manage.py import_trace RUN FILE`: keeps what `python -m engine bench --trace FILE` wrote with a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.models import Measurement
from dashboard.traces.store import import_trace
from engine.errors import MeasurementError


class Command(BaseCommand):
    help = "Keeps a Chrome trace (JSON or its gzip) with a run, in place of one that was there."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("run", type=int, help="the number in the run's address")
        parser.add_argument("file", type=Path)

    def handle(self, *_: Any, **options: Any) -> None:
        measurement = Measurement.objects.defer("document").filter(pk=options["run"]).first()
        if measurement is None:
            raise CommandError(f"There is no run {options['run']}; its page's address has its number.")
        try:
            stored = import_trace(measurement=measurement, path=options["file"])
        except MeasurementError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Run {measurement.pk}: {stored}, {len(stored.content) / 1000:.0f} kB.")

"""Fills an empty database with made-up measurements, to look at full pages without a benchmark."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from dashboard import demo_data
from dashboard.models import Measurement


class Command(BaseCommand):
    help = "Fills an empty database with made-up measurements; no figure of theirs was measured."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--measurements", type=int, default=3000, metavar="N", help="default %(default)s")

    def handle(self, **options: Any) -> None:
        if Measurement.objects.exists():
            raise CommandError("the database holds measurements; seed_demo fills an empty one only")
        count = options["measurements"]
        for written in demo_data.fill(count):
            self.stdout.write(f"\r{written:,} of {count:,}", ending="")
        self.stdout.write("")

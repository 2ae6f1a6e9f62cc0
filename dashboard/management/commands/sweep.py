"""`manage.py sweep NAME`: starts a sweep, shows its progress, prints its table."""

from __future__ import annotations

import time
from typing import Any

from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dashboard.errors import DashboardError
from dashboard.measurements.metrics import LISTED
from dashboard.models import State, SweepRun, Trigger
from dashboard.sweeps import bench_client, definitions, devices, selectors, services
from dashboard.sweeps.collector import Collector
from dashboard.templatetags.figures import duration, of_metric, speed

LOOK_S = 0.5


class Command(BaseCommand):
    help = "Starts a sweep or a preset and follows it. Ctrl-C stops watching; with --now it cancels the run."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument(
            "--now", action="store_true", help="do the work in this process, without a Celery worker"
        )
        parser.add_argument("--no-wait", action="store_true", help="start it and return")

    def handle(self, *_: Any, **options: Any) -> None:
        now: bool = options["now"]
        try:
            sweep = definitions.find_sweep(name=options["name"])
            run = services.start_sweep(sweep=sweep, trigger=Trigger.SHELL)
        except ValidationError as error:
            raise CommandError(" ".join(error.messages)) from error
        except DashboardError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Sweep run {run.pk} ({run.name}): {run.total} points, {run.repeats} repeats each")
        if options["no_wait"]:
            return
        if now:
            self._work(run)
        else:
            self._watch(run)
        self._finish(run)

    def _work(self, run: SweepRun) -> None:
        with bench_client.connect() as bench:
            own = Collector(bench, on_change=self._say)
            try:
                self._wait_for_turn(run)
                while own.collect(run.pk):
                    time.sleep(LOOK_S)
            except KeyboardInterrupt:
                services.cancel(run=run)

    def _wait_for_turn(self, run: SweepRun) -> None:
        """Another sweep may have the device, or have been first to ask for it."""
        said = ""
        while blocker := devices.blocker_of(run):
            if said != (said := f"waiting for {blocker} on the same device"):
                self._say(said)
            time.sleep(LOOK_S)

    def _watch(self, run: SweepRun) -> None:
        said = ""
        try:
            while run.active:
                time.sleep(LOOK_S)
                run.refresh_from_db()
                label = run.label or "waiting for a Celery worker"
                if run.active and label != said:
                    self._say(label)
                    said = label
        except KeyboardInterrupt:
            raise CommandError(
                f"Not watching any more; run {run.pk} goes on. Cancel it on {run.get_absolute_url()}."
            ) from None

    def _say(self, label: str) -> None:
        self.stdout.write(f"  {label}")
        self.stdout.flush()

    def _finish(self, run: SweepRun) -> None:
        run.refresh_from_db()
        rows = [_HEADER, *(_row(point) for point in selectors.points(run).filter(current=True))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            self.stdout.write("  ".join(cells).rstrip())
        took = (run.ended - run.started).total_seconds() if run.ended and run.started else None
        self.stdout.write(f"Run {run.pk} {run.state} after {duration(took)}: {run.get_absolute_url()}")
        if run.state != State.FINISHED:
            raise CommandError(run.error or f"Run {run.pk} ended as {run.state}.")


_HEADER = ("point", "state", "95 % interval", "n", *(metric.short for metric in LISTED))


def _row(point: Any) -> tuple[str, ...]:
    measured = getattr(point, "measurement", None)
    if measured is None:
        return (str(point), f"{point.state} {point.error}".strip(), *[""] * (len(_HEADER) - 2))
    return (
        str(point),
        point.state,
        f"{speed(measured.ci_low)} - {speed(measured.ci_high)}",
        str(measured.samples),
        *(of_metric(measured, metric) for metric in LISTED),
    )

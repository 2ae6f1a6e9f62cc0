"""Sweeps, their runs and their points.

A sweep run and its points live the same life: queued, running with a heartbeat, then finished, failed or
cancelled. A change of state is an UPDATE whose WHERE names the old state; one row changed means you won.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.conf import settings
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.urls import reverse
from django.utils import timezone

from dashboard.sweeps.crontab import format_crontab
from dashboard.sweeps.matrix import place, sampling_label, validate_matrix, validate_repeats
from engine.sampling import SamplingParams

SILENT_AFTER = timedelta(seconds=15)
"""A heartbeat comes every two seconds."""


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (State.QUEUED, State.RUNNING)
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)


BOTH = "cpu+gpu"
DEVICE_OF = {"cuda": "gpu"}
"""The kind of device that a backend keeps busy; every other backend computes on the CPU."""


def device_of(backends: Iterable[str]) -> str:
    """What a run over `backends` needs to itself: "cpu", "gpu" or "cpu+gpu"."""
    return "+".join(sorted({DEVICE_OF.get(backend, "cpu") for backend in backends}))


class Trigger(models.TextChoices):
    ADMIN = "admin", "in the admin"
    PAGE = "page", "on the dashboard"
    SHELL = "shell", "from a shell"
    SCHEDULE = "schedule", "by its schedule"


class Sweep(models.Model):
    """A named matrix of benchmark points, started by hand or on a schedule."""

    name = models.SlugField(max_length=80, unique=True)
    description = models.CharField(max_length=300, blank=True)
    matrix = models.JSONField(validators=[validate_matrix])
    repeats = models.PositiveSmallIntegerField(default=5, validators=[validate_repeats])
    trace = models.BooleanField(
        default=False,
        help_text="Keep a trace of one token of each point for its waterfall: hundreds of kB each.",
    )
    schedule = models.OneToOneField(
        "django_celery_beat.PeriodicTask", on_delete=models.SET_NULL, null=True, blank=True, editable=False
    )
    changed = models.DateTimeField(auto_now=True)
    slot = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="the time of its schedule that was served last"
    )

    class Meta:
        ordering = ["name"]
        permissions = [("can_run_sweep", "Can start, cancel and retry sweeps")]

    def __str__(self) -> str:
        return self.name

    @property
    def crontab(self) -> str:
        """The schedule as a person types it; empty without one."""
        times = self.schedule.crontab if self.schedule else None
        return format_crontab(times) if times else ""

    def clean(self) -> None:
        if isinstance(self.matrix, dict) and self.repeats:
            validate_matrix(self.matrix)


class SweepRun(models.Model):
    """One run of a sweep. `name`, `repeats` and `trace` are copies: the sweep may change or go afterwards.

    `attempt` counts how often its failed points were retried. `heartbeat` is the
    last time that a collector looked at it.
    """

    sweep = models.ForeignKey(Sweep, on_delete=models.SET_NULL, null=True, related_name="runs")
    name = models.CharField(max_length=80)
    repeats = models.PositiveSmallIntegerField()
    trace = models.BooleanField(default=False)
    device = models.CharField(max_length=10, choices=[(d, d) for d in ("cpu", "gpu", BOTH)], default=BOTH)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    trigger = models.CharField(max_length=10, choices=Trigger)
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    attempt = models.PositiveSmallIntegerField(default=1)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField()
    label = models.CharField(max_length=300, blank=True, help_text="what it is doing now")
    error = models.TextField(blank=True)
    version = models.PositiveIntegerField(default=0, help_text="counts changes, for hints to open pages")
    created = models.DateTimeField(default=timezone.now)
    started = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(null=True, blank=True)
    ended = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created", "-pk"]
        indexes = [models.Index(fields=["state", "created"], name="sweeprun_active")]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=State.values), name="sweeprun_state_known"),
            models.CheckConstraint(condition=Q(trigger__in=Trigger.values), name="sweeprun_trigger_known"),
            models.CheckConstraint(condition=Q(done__lte=F("total")), name="sweeprun_done_within_total"),
            models.CheckConstraint(
                condition=Q(state__in=ACTIVE, ended__isnull=True) | Q(state__in=ENDED, ended__isnull=False),
                name="sweeprun_ended_has_a_time",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.RUNNING) | Q(heartbeat__isnull=False),
                name="sweeprun_running_has_a_heartbeat",
            ),
            models.UniqueConstraint(
                fields=["sweep"], condition=Q(state__in=ACTIVE), name="sweeprun_one_active_a_sweep"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} #{self.pk}"

    def get_absolute_url(self) -> str:
        return reverse("dashboard:sweep_run", args=[self.pk])

    @property
    def active(self) -> bool:
        return self.state in ACTIVE

    @property
    def silent_since(self) -> datetime | None:
        """Its last heartbeat, if it runs and that is older than SILENT_AFTER."""
        if self.state != State.RUNNING or self.heartbeat is None:
            return None
        silent = SweepRun.objects.filter(pk=self.pk, heartbeat__lt=Now() - SILENT_AFTER)  # by its own clock
        return self.heartbeat if silent.exists() else None

    @property
    def tag(self) -> str:
        """An HTTP entity tag of what its page shows."""
        return f'"{self.version}{"-silent" if self.silent_since else ""}"'

    @property
    def devices(self) -> tuple[str, ...]:
        """The kinds of device that it holds while it runs."""
        return tuple(self.device.split("+"))


class DeviceHold(models.Model):
    """Says which run has a kind of device. Its key is the lock: one sweep a device at a time."""

    device = models.CharField(max_length=10, primary_key=True)
    run = models.ForeignKey(SweepRun, on_delete=models.CASCADE, related_name="holds")

    def __str__(self) -> str:
        return f"{self.device}: run {self.run_id}"


class Point(models.Model):
    """One benchmark point of a run. A retry adds a row, so that no failure is forgotten.

    `request_id` names the request in the bench inbox. It is written before the request is sent, so a
    process that takes over asks for the same answer instead of a second measurement.
    """

    run = models.ForeignKey(SweepRun, on_delete=models.CASCADE, related_name="points")
    index = models.PositiveIntegerField(help_text="place in the expanded matrix, from 0")
    attempt = models.PositiveSmallIntegerField(default=1)
    current = models.BooleanField(default=True, help_text="no later attempt exists")
    model = models.CharField(max_length=200)
    backend = models.CharField(max_length=40)
    devices = models.PositiveSmallIntegerField()
    sync = models.CharField(
        max_length=20,
        blank=True,
        db_default="",
        default="",
        help_text="how it shall synchronise; empty: what the worker does by itself",
    )
    streams = models.PositiveSmallIntegerField(
        db_default=1, default=1, help_text="requests that are decoded side by side"
    )
    context = models.PositiveIntegerField()
    tokens = models.PositiveIntegerField()
    sampling = models.JSONField(default=dict)
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    request_id = models.CharField(max_length=64, unique=True, null=True, blank=True)
    worker = models.CharField(max_length=120, blank=True)
    error_code = models.CharField(max_length=40, blank=True)
    error = models.TextField(blank=True)
    started = models.DateTimeField(null=True, blank=True)
    ended = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["run", "index", "attempt"]
        constraints = [
            models.UniqueConstraint(fields=["run", "index", "attempt"], name="point_unique_in_run"),
            models.UniqueConstraint(
                fields=["run", "index"], condition=Q(current=True), name="point_one_current_attempt"
            ),
            models.CheckConstraint(condition=Q(state__in=State.values), name="point_state_known"),
            models.CheckConstraint(
                condition=~Q(state=State.FAILED) | ~Q(error=""), name="point_failed_has_an_error"
            ),
            models.CheckConstraint(
                condition=~Q(state=State.RUNNING) | Q(request_id__isnull=False),
                name="point_running_has_a_request",
            ),
        ]

    def __str__(self) -> str:
        return place(self)

    @property
    def sampling_label(self) -> str:
        return sampling_label(SamplingParams(**self.sampling))

"""The rows behind the dashboard. Verbs live in `services`, queries in `selectors`.

A sweep run and its points live the same life: queued, running with a heartbeat, then finished, failed or
cancelled. A change of state is an UPDATE whose WHERE names the old state; one row changed means you won.
"""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import models
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone

from dashboard.matrix import sampling_label, validate_matrix, validate_repeats
from dashboard.schedule import format_crontab
from engine.backends.base import SamplingParams


class State(models.TextChoices):
    QUEUED = "queued"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


ACTIVE = (State.QUEUED, State.RUNNING)
ENDED = (State.FINISHED, State.FAILED, State.CANCELLED)


class Trigger(models.TextChoices):
    ADMIN = "admin", "in the admin"
    PAGE = "page", "on the dashboard"
    SHELL = "shell", "from a shell"
    SCHEDULE = "schedule", "by its schedule"


class Configuration(models.Model):
    """One way to run one model: what must be equal before two speeds form one history.

    `hardware` names the devices as the measurement does ("2 x NVIDIA H200"); `sampling` is
    `matrix.sampling_label`. The repeats are left out: they change the spread, not the speed.
    """

    model = models.CharField(max_length=200)
    backend = models.CharField(max_length=40)
    hardware = models.CharField(max_length=300)
    devices = models.PositiveSmallIntegerField()
    parallelism = models.CharField(max_length=20)
    context = models.PositiveIntegerField(help_text="tokens in the prompt")
    tokens = models.PositiveIntegerField(help_text="tokens generated")
    sampling = models.CharField(max_length=120)

    NATURAL_KEY = ("model", "backend", "hardware", "devices", "parallelism", "context", "tokens", "sampling")

    class Meta:
        ordering = ["model", "backend", "hardware", "context", "tokens"]
        constraints = [
            models.UniqueConstraint(
                fields=[
                    "model",
                    "backend",
                    "hardware",
                    "devices",
                    "parallelism",
                    "context",
                    "tokens",
                    "sampling",
                ],
                name="configuration_natural_key",
            )
        ]

    def __str__(self) -> str:
        return (
            f"{self.model} on {self.backend}, {self.hardware}, context {self.context}, {self.tokens} tokens"
        )


class Sweep(models.Model):
    """A named matrix of benchmark points, started by hand or on a schedule."""

    name = models.SlugField(max_length=80, unique=True)
    description = models.CharField(max_length=300, blank=True)
    matrix = models.JSONField(validators=[validate_matrix])
    repeats = models.PositiveSmallIntegerField(default=5, validators=[validate_repeats])
    schedule = models.OneToOneField(
        "django_celery_beat.PeriodicTask", on_delete=models.SET_NULL, null=True, blank=True, editable=False
    )
    changed = models.DateTimeField(auto_now=True)

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
    """One run of a sweep. `name` and `repeats` are copies: the sweep may change or go afterwards.

    `owner` is the token of the process that works on it; whoever holds another token writes nothing.
    `attempt` counts how often its failed points were retried, `resumed` how often another process took over.
    """

    sweep = models.ForeignKey(Sweep, on_delete=models.SET_NULL, null=True, related_name="runs")
    name = models.CharField(max_length=80)
    repeats = models.PositiveSmallIntegerField()
    state = models.CharField(max_length=10, choices=State, default=State.QUEUED)
    trigger = models.CharField(max_length=10, choices=Trigger)
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    attempt = models.PositiveSmallIntegerField(default=1)
    resumed = models.PositiveSmallIntegerField(default=0)
    done = models.PositiveIntegerField(default=0)
    total = models.PositiveIntegerField()
    label = models.CharField(max_length=300, blank=True, help_text="what it is doing now")
    error = models.TextField(blank=True)
    owner = models.CharField(max_length=64, blank=True)
    version = models.PositiveIntegerField(default=0, help_text="counts changes, for hints to open pages")
    created = models.DateTimeField(default=timezone.now)
    enqueued = models.DateTimeField(null=True, blank=True, help_text="when Celery was last told of it")
    started = models.DateTimeField(null=True, blank=True)
    heartbeat = models.DateTimeField(null=True, blank=True)
    ended = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created", "-pk"]
        indexes = [models.Index(fields=["state", "heartbeat"], name="sweeprun_reaper")]
        constraints = [
            models.CheckConstraint(condition=Q(state__in=State.values), name="sweeprun_state_known"),
            models.CheckConstraint(condition=Q(trigger__in=Trigger.values), name="sweeprun_trigger_known"),
            models.CheckConstraint(condition=Q(done__lte=F("total")), name="sweeprun_done_within_total"),
            models.CheckConstraint(
                condition=Q(state__in=ACTIVE, ended__isnull=True) | Q(state__in=ENDED, ended__isnull=False),
                name="sweeprun_ended_has_a_time",
            ),
            models.CheckConstraint(
                condition=~Q(state=State.RUNNING) | (Q(heartbeat__isnull=False) & ~Q(owner="")),
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
        return f"{self.model} on {self.backend} x{self.devices}, context {self.context}, {self.tokens} tokens"

    @property
    def sampling_label(self) -> str:
        return sampling_label(SamplingParams(**self.sampling))


class Measurement(models.Model):
    """A result ("run" on the pages): the schema-1 document, and the figures that lists sort by.

    Speeds are tokens a second, `ttft_ms` milliseconds, `itl_*` microseconds; a percentile that n does
    not carry is null. `digest` is the SHA-256 of the document's canonical JSON.
    """

    configuration = models.ForeignKey(Configuration, on_delete=models.PROTECT, related_name="measurements")
    point = models.OneToOneField(
        Point, on_delete=models.SET_NULL, null=True, blank=True, related_name="measurement"
    )
    digest = models.CharField(max_length=64, unique=True, editable=False)
    source = models.CharField(max_length=200, help_text="the sweep run or the file that it came from")
    created = models.DateTimeField(db_index=True, help_text="when it was measured")
    stored = models.DateTimeField(default=timezone.now)
    git_sha = models.CharField(max_length=64, blank=True, db_index=True)
    tok_s = models.FloatField()
    ci_low = models.FloatField()
    ci_high = models.FloatField()
    samples = models.PositiveIntegerField(help_text="how many repeats the median and its interval rest on")
    mbu_datasheet = models.FloatField(null=True, blank=True)
    mbu_measured = models.FloatField(null=True, blank=True)
    ttft_ms = models.FloatField()
    prefill_tok_s = models.FloatField()
    itl_p50 = models.FloatField()
    itl_p90 = models.FloatField(null=True, blank=True)
    itl_p99 = models.FloatField(null=True, blank=True)
    verified = models.BooleanField(help_text="its tokens were compared and found equal")
    document = models.JSONField(encoder=DjangoJSONEncoder)

    class Meta:
        ordering = ["-created", "-pk"]
        indexes = [models.Index(fields=["configuration", "created"], name="measurement_history")]
        constraints = [
            models.CheckConstraint(condition=Q(tok_s__gt=0), name="measurement_speed_positive"),
            models.CheckConstraint(condition=Q(ci_low__lte=F("ci_high")), name="measurement_interval_order"),
            models.CheckConstraint(condition=Q(samples__gte=1), name="measurement_has_samples"),
            *(
                models.CheckConstraint(
                    condition=Q(**{f"{name}__isnull": True}) | Q(**{f"{name}__gt": 0, f"{name}__lte": 1.2}),
                    name=f"measurement_{name}_possible",
                )
                for name in ("mbu_datasheet", "mbu_measured")
            ),
        ]

    def __str__(self) -> str:
        return f"{self.tok_s:.1f} tok/s, {self.configuration}"

    def get_absolute_url(self) -> str:
        return reverse("dashboard:run", args=[self.pk])

    @property
    def environment(self) -> dict[str, Any]:
        return dict(self.document.get("environment", {}))

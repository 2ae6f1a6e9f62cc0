"""Configurations and what was measured of them."""

from __future__ import annotations

from typing import Any

from django.core.serializers.json import DjangoJSONEncoder
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import F, Q
from django.urls import reverse
from django.utils import timezone

from dashboard.measurements.configurations import NATURAL_KEY
from dashboard.models.sweeps import Point
from dashboard.sweeps.matrix import GREEDY
from engine.backends.base import MAILBOX
from engine.kv_cache import CacheFormat
from engine.measuring.measurement import FULL, KINDS

WEIGHTS = "16-bit"


class Configuration(models.Model):
    """One way to run one model: what must be equal before two speeds form one history.

    `hardware` names the devices as the measurement does ("2 x NVIDIA H200"); `sampling` is
    `matrix.sampling_label`. The repeats are left out: they change the spread, not the speed.
    """

    model = models.CharField(max_length=200)
    backend = models.CharField(max_length=40)
    hardware = models.CharField(max_length=300)
    devices = models.PositiveSmallIntegerField()
    parallelism = models.CharField(
        max_length=20, help_text="none, tp or dtp: how the devices share the model"
    )
    delay = models.PositiveSmallIntegerField(
        default=0, help_text="layers by which a lane sees the others' output late"
    )
    sync = models.CharField(
        max_length=20, default=MAILBOX, help_text="how a phase knows that its input is there"
    )
    context = models.PositiveIntegerField(help_text="tokens in the prompt")
    tokens = models.PositiveIntegerField(help_text="tokens generated")
    sampling = models.CharField(max_length=120)
    weights = models.CharField(
        max_length=20, default=WEIGHTS, help_text="16-bit, 32-bit, or the packed format that is kept"
    )
    cached_tokens = models.PositiveIntegerField(
        default=0, help_text="tokens of the prompt that an earlier request left: 0 is cold, more is warm"
    )
    streams = models.PositiveSmallIntegerField(default=1, help_text="requests decoded side by side")
    cache = models.CharField(
        max_length=20,
        default=CacheFormat.FP16.value,
        db_default=CacheFormat.FP16.value,
        help_text="how keys and values are kept: fp16 or fp8",
    )
    reference = models.ForeignKey(
        "dashboard.Measurement",
        on_delete=models.SET_NULL,
        null=True,
        blank=True,
        related_name="+",
        help_text="the run that the newest level is held against, beside the best level",
    )
    threshold = models.FloatField(
        null=True,
        blank=True,
        validators=[MinValueValidator(0.005), MaxValueValidator(1.0)],
        help_text="share that counts as a regression, 0.005 to 1; empty: from its own spread",
    )

    NATURAL_KEY = NATURAL_KEY

    class Meta:
        ordering = ["model", "backend", "hardware", "context", "tokens"]
        constraints = [
            models.UniqueConstraint(
                fields=list(NATURAL_KEY),
                name="configuration_natural_key",
            )
        ]

    def __str__(self) -> str:
        where = f"{self.model} on {self.backend}, {self.hardware}"
        return ", ".join([where, f"context {self.context}, {self.tokens} tokens", *self.manner])

    @property
    def is_headline(self) -> bool:
        """Whether its speed may stand for its model's, and beside others': that of one request, its cache in
        16 bits, as no headline rests on a quantisation of this project's.
        """
        return self.streams == 1 and self.cache == CacheFormat.FP16

    @property
    def arrangement(self) -> list[str]:
        """What sets it apart from one cold request in 16 bits on one device by mailboxes, in words."""
        return [
            *([self.parallelism] if self.parallelism != "none" else []),
            *([f"delay {self.delay}"] if self.delay else []),
            *([self.sync] if self.sync != MAILBOX else []),
            *([f"{self.weights} weights"] if self.weights != WEIGHTS else []),
            *([f"{self.cache} cache"] if self.cache != CacheFormat.FP16 else []),
            *([f"{self.cached_tokens} tokens cached"] if self.cached_tokens else []),
            *([f"{self.streams} streams"] if self.streams > 1 else []),
        ]

    @property
    def manner(self) -> list[str]:
        """Its `arrangement`, and its sampling unless that is greedy."""
        return [*self.arrangement, *([self.sampling] if self.sampling != GREEDY else [])]


class Measurement(models.Model):
    """A result ("run" on the pages): the document, and the figures that lists sort by.

    Speeds are tokens a second, `ttft_*` milliseconds, `itl_*` microseconds; a percentile that n does
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
    ttft_p90 = models.FloatField(null=True, blank=True)
    prefill_tok_s = models.FloatField()
    itl_p50 = models.FloatField()
    itl_p90 = models.FloatField(null=True, blank=True)
    itl_p99 = models.FloatField(null=True, blank=True)
    verified = models.BooleanField(help_text="its tokens were compared and found equal")
    verified_kind = models.CharField(
        max_length=8,
        default=FULL,
        choices=[(kind, kind) for kind in KINDS],
        help_text="how much of it an independent computation has seen",
    )
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


class MetricInterval(models.Model):
    """95 % intervals of a measurement's medians and percentiles, from its raw samples, in its own units.

    Kept beside the measurement so that a history draws its bands without opening documents. The ends are
    null where the document kept no raw samples, or too few to bound the figure; `n` is how many the figure
    rests on (of prefill, as many as of decode speed, which has its interval in the measurement itself).
    """

    measurement = models.OneToOneField(
        Measurement, on_delete=models.CASCADE, primary_key=True, related_name="spread"
    )
    ttft_low = models.FloatField(null=True, blank=True)
    ttft_high = models.FloatField(null=True, blank=True)
    ttft_p90_low = models.FloatField(null=True, blank=True)
    ttft_p90_high = models.FloatField(null=True, blank=True)
    ttft_n = models.PositiveIntegerField()
    prefill_low = models.FloatField(null=True, blank=True)
    prefill_high = models.FloatField(null=True, blank=True)
    itl_p50_low = models.FloatField(null=True, blank=True)
    itl_p50_high = models.FloatField(null=True, blank=True)
    itl_p99_low = models.FloatField(null=True, blank=True)
    itl_p99_high = models.FloatField(null=True, blank=True)
    itl_n = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"spread of run {self.pk}"

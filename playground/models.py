"""What the playground keeps: generations after their stream, what was shared of them, keys to the API."""

from __future__ import annotations

import json
import secrets
from typing import Any

from django.conf import settings
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models.functions import Now

from config.rates import Rate


class PlainJson(json.JSONEncoder):
    """Writes text as it is: escaped, a prompt may take six times its bytes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "ensure_ascii": False})


class Generation(models.Model):
    """One run of a prompt, owned by the browser session that started it."""

    class State(models.TextChoices):
        RUNNING = "running"
        """Waiting or streaming: only Redis knows which."""
        DONE = "done"
        CANCELLED = "cancelled"
        FAILED = "failed"

    id = models.CharField(primary_key=True, max_length=32, editable=False)
    owner = models.CharField(max_length=40, blank=True)
    """A name kept in the browser's session; empty for a client without one, which cannot come back."""
    state = models.CharField(max_length=16, choices=State.choices, default=State.RUNNING)
    request = models.JSONField(encoder=PlainJson)
    """Prompt, sampling and stop strings, as they were sent to the worker; a failed one has no prompt."""
    size = models.PositiveIntegerField(default=0, editable=False)
    """About how many bytes the row takes."""
    model = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=32, blank=True)
    text = models.TextField(blank=True)
    timings = models.JSONField(default=dict)
    environment = models.JSONField(default=dict)
    """Machine and code that ran it, as its worker told (`engine.measuring.environment`)."""
    pace = models.JSONField(default=dict)
    """Tokens over the worker's time (`playground.pace`)."""
    finish_reason = models.CharField(max_length=16, blank=True)
    error = models.CharField(max_length=500, blank=True)
    created = models.DateTimeField(db_default=Now())
    finished = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-created"]
        indexes = [
            models.Index(fields=["owner", "-created"]),
            models.Index(fields=["created"], name="generation_age"),
        ]
        constraints = [
            models.CheckConstraint(
                name="generation_state_known",
                condition=models.Q(state__in=["running", "done", "cancelled", "failed"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.id[:8]} {self.state}"


def new_share_id() -> str:
    """128 random bits: whoever has the address was given it."""
    return secrets.token_urlsafe(16)


class Share(models.Model):
    """A page that shows one generation, or a race of several, to whoever has its address."""

    id = models.CharField(primary_key=True, max_length=22, default=new_share_id, editable=False)
    owner = models.CharField(max_length=40)
    """The session that shared it and may revoke it, as in Generation."""
    race = models.BooleanField(default=False)
    created = models.DateTimeField(db_default=Now())
    card = models.BinaryField(null=True, blank=True)
    """The picture for link previews, a PNG, once somebody has asked for it."""

    class Meta:
        ordering = ["-created"]
        indexes = [
            models.Index(fields=["owner", "-created"], name="share_owner"),
            models.Index(fields=["created"], name="share_age"),
        ]

    def __str__(self) -> str:
        return f"{'race' if self.race else 'generation'} {self.id[:6]}"


class Lane(models.Model):
    """One contestant of a shared page: a generation, or a pacer, which is a pace and no engine."""

    share = models.ForeignKey(Share, models.CASCADE, related_name="lanes")
    place = models.PositiveSmallIntegerField()
    generation = models.ForeignKey(Generation, models.PROTECT, related_name="lanes", null=True, blank=True)
    """Protected: a page without its generation would show nothing. Take the page down first."""
    pacer_tok_s = models.FloatField(null=True, blank=True)

    class Meta:
        ordering = ["place"]
        constraints = [
            models.UniqueConstraint(fields=["share", "place"], name="lane_place_once"),
            models.CheckConstraint(
                name="lane_generation_or_pacer",
                condition=models.Q(generation__isnull=True) ^ models.Q(pacer_tok_s__isnull=True),
            ),
        ]

    def __str__(self) -> str:
        return f"lane {self.place} of {self.share_id[:6]}"


class ApiKey(models.Model):
    """A key to `/v1`, by its digest: the key itself is shown once and kept nowhere."""

    name = models.CharField(max_length=100, help_text="Whose it is, or what for.")
    prefix = models.CharField(max_length=16, unique=True, editable=False)
    """How the key begins: tells keys apart where the key must not be seen."""
    digest = models.CharField(max_length=64, unique=True, editable=False)
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: as LIMIT_KEY says."
    )
    tokens_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: as LIMIT_KEY says."
    )
    created = models.DateTimeField(db_default=Now())
    last_used = models.DateTimeField(null=True, blank=True, editable=False)
    """To the minute."""
    revoked = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering = ["-created"]
        verbose_name = "API key"

    def __str__(self) -> str:
        return f"{self.prefix}… ({self.name})"

    @property
    def rate(self) -> Rate | None:
        """What it may take a minute; None for no limit."""
        usual: Rate | None = settings.LIMIT_KEY
        if usual is None and self.requests_per_minute is None and self.tokens_per_minute is None:
            return None
        unlimited = 10**9
        return Rate(
            self.requests_per_minute or (usual.requests if usual else unlimited),
            self.tokens_per_minute or (usual.tokens if usual else unlimited),
        )

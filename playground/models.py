"""What the playground keeps of a generation once its stream has expired, and what its owner has shared."""

from __future__ import annotations

import secrets

from django.db import models
from django.db.models.functions import Now


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
    request = models.JSONField()
    """Prompt, sampling and stop strings, as they were sent to the worker."""
    model = models.CharField(max_length=200, blank=True)
    backend = models.CharField(max_length=32, blank=True)
    text = models.TextField(blank=True)
    timings = models.JSONField(default=dict)
    environment = models.JSONField(default=dict)
    """Machine and code that ran it, as its worker told (`engine.environment`)."""
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
    generation = models.ForeignKey(Generation, models.CASCADE, related_name="lanes", null=True, blank=True)
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

"""What the playground keeps of a generation once its stream has expired."""

from __future__ import annotations

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

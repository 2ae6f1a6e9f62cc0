"""What people note on a history."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from dashboard.models.measurements import Configuration


class Annotation(models.Model):
    """A note at a moment, shown in the history of one configuration, or of all if it names none.

    Typed by a person (`who`), or imported from a file (`source`, and `digest`: the SHA-256 of its canonical
    JSON, so that importing again adds nothing).
    """

    configuration = models.ForeignKey(
        Configuration,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="annotations",
        help_text="empty: every configuration",
    )
    at = models.DateTimeField(help_text="the moment that the note is about")
    git_sha = models.CharField(max_length=64, blank=True, help_text="the commit that the note is about")
    text = models.CharField(max_length=300)
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    source = models.CharField(max_length=200, blank=True)
    digest = models.CharField(max_length=64, unique=True, null=True, blank=True, editable=False)
    created = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ["at", "pk"]
        constraints = [models.CheckConstraint(condition=~Q(text=""), name="annotation_says_something")]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d}: {self.text}"

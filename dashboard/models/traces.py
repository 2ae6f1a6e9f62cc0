"""Chrome traces of measurements."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from dashboard.models.measurements import Measurement


class Trace(models.Model):
    """The spans of some tokens of one more run of a measurement's point: Chrome trace JSON, gzip.

    What is stored was read and written again by `engine.measuring.trace`, wherever it came from.
    """

    MAX_BYTES = 8 * 2**20
    """Compressed; a trace that is larger is refused."""

    measurement = models.OneToOneField(
        Measurement, on_delete=models.CASCADE, primary_key=True, related_name="trace"
    )
    content = models.BinaryField(max_length=MAX_BYTES)
    spans = models.PositiveIntegerField()
    tracks = models.PositiveIntegerField(help_text="SMs or threads, over all devices")
    duration_us = models.FloatField(help_text="from the first span's start to the last one's end")
    source = models.CharField(max_length=200)
    stored = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [models.CheckConstraint(condition=Q(spans__gt=0), name="trace_has_spans")]

    def __str__(self) -> str:
        return f"{self.spans} spans on {self.tracks} track{'' if self.tracks == 1 else 's'}"

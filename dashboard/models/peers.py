"""Other engines, measured beside ours on the same machine."""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q


class Peer(models.Model):
    """Speed of another engine on the same model shape, hardware and context, tokens a second.

    Of decode behind `context` tokens, or of reading a prompt of so many. Read from benchmarks/peers/*.jsonl,
    one JSON object a line: `peer`, `model`, `context`, `device`, `samples`, and `measures` if it is not
    decode. `digest` is the SHA-256 of that line's canonical JSON.
    """

    class Measures(models.TextChoices):
        DECODE = "decode"
        PREFILL = "prefill"

    name = models.CharField(max_length=200)
    model = models.CharField(max_length=200)
    hardware = models.CharField(max_length=300)
    measures = models.CharField(
        max_length=20, choices=Measures, default=Measures.DECODE, db_default=Measures.DECODE
    )
    context = models.PositiveIntegerField()
    tok_s = models.FloatField(help_text="median of the samples")
    ci_low = models.FloatField()
    ci_high = models.FloatField()
    samples = models.PositiveIntegerField()
    source = models.CharField(max_length=200)
    digest = models.CharField(max_length=64, unique=True, editable=False)

    class Meta:
        ordering = ["model", "hardware", "context", "-tok_s"]
        constraints = [
            models.CheckConstraint(
                condition=Q(ci_low__gt=0, ci_low__lte=F("tok_s"), ci_high__gte=F("tok_s")),
                name="peer_interval_holds_the_median",
            )
        ]

    def __str__(self) -> str:
        return f"{self.name}: {self.tok_s:.0f} tok/s"

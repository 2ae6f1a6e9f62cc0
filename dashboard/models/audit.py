"""Who did what to sweeps, schedules, regressions and settings of a configuration."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.utils import timezone


class AuditEntry(models.Model):
    """One act. It outlives the account and the row that it names: both are kept by name as well.

    `who` is null for what nobody pressed: a schedule, a shell, the rule that opens regressions.
    """

    when = models.DateTimeField(default=timezone.now, db_index=True)
    who = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    by = models.CharField(max_length=150, help_text="the account's name, or what acted in its place")
    act = models.CharField(max_length=40, help_text="'sweep started', 'regression acknowledged', …")
    about = models.CharField(max_length=300, help_text="what it was done to")
    url = models.CharField(max_length=200, blank=True)
    detail = models.CharField(max_length=500, blank=True)

    class Meta:
        ordering = ["-when", "-pk"]
        verbose_name_plural = "audit log"

    def __str__(self) -> str:
        return f"{self.by}: {self.act}, {self.about}"

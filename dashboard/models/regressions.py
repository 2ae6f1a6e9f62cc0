"""What the rule says of each configuration now, and the regressions that it has opened."""

from __future__ import annotations

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.urls import reverse
from django.utils import timezone

from dashboard.models.measurements import Configuration, Measurement


class Label(models.TextChoices):
    """`dashboard.regressions.rule.judge` says when each one holds."""

    REGRESSION = "regression", "regression"
    SUSPICIOUS = "suspicious", "one slow point"
    STEADY = "steady", "steady"
    IMPROVEMENT = "improvement", "improved"
    INSUFFICIENT = "insufficient", "insufficient data"


class MetricStatus(models.Model):
    """The rule's last word on one metric of one configuration: what a badge shows.

    `baseline` is in the metric's unit, `change` the newest value relative to it, `threshold` the relative
    change that counts; all three are null while there are too few points.
    """

    configuration = models.ForeignKey(Configuration, on_delete=models.CASCADE, related_name="standings")
    metric = models.CharField(max_length=20)
    label = models.CharField(max_length=12, choices=Label)
    n = models.PositiveIntegerField(help_text="verified points that were looked at")
    baseline = models.FloatField(null=True)
    threshold = models.FloatField(null=True)
    change = models.FloatField(null=True)
    judged = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["configuration", "metric"]
        constraints = [
            models.UniqueConstraint(fields=["configuration", "metric"], name="standing_one_a_metric"),
            models.CheckConstraint(condition=Q(label__in=Label.values), name="standing_label_known"),
        ]

    def __str__(self) -> str:
        return f"{self.metric} of {self.configuration}: {self.get_label_display()}"


class RegressionStatus(models.TextChoices):
    OPEN = "open", "open"
    ACKNOWLEDGED = "acknowledged", "acknowledged"
    RECOVERED = "recovered", "recovered"
    ACCEPTED = "accepted", "accepted as the new normal"


STANDING_FATES = (RegressionStatus.OPEN, RegressionStatus.ACKNOWLEDGED)
CLOSED_FATES = (RegressionStatus.RECOVERED, RegressionStatus.ACCEPTED)


class Regression(models.Model):
    """The level lies beyond the threshold. `first_bad` is its first point, `last_good` the one before it.

    `value` is the newest value, kept up to date while it stands; `baseline` stays as it was at the opening.
    `cause` is the regression whose notice speaks for this one, too: of the same change, and opened before it.
    `emailed`, `called` say when the notices of its opening were delivered, `closing_emailed` and
    `closing_called` those of its end, `asked` when Celery was last told to.
    """

    configuration = models.ForeignKey(Configuration, on_delete=models.CASCADE, related_name="regressions")
    metric = models.CharField(max_length=20)
    fate = models.CharField(max_length=12, choices=RegressionStatus, default=RegressionStatus.OPEN)
    baseline = models.FloatField()
    threshold = models.FloatField()
    value = models.FloatField()
    last_good = models.ForeignKey(Measurement, on_delete=models.SET_NULL, null=True, related_name="+")
    first_bad = models.ForeignKey(Measurement, on_delete=models.SET_NULL, null=True, related_name="+")
    good_sha = models.CharField(max_length=64, blank=True)
    bad_sha = models.CharField(max_length=64, blank=True)
    since = models.DateTimeField(help_text="when the first bad point was measured")
    opened = models.DateTimeField(default=timezone.now)
    closed = models.DateTimeField(null=True, blank=True)
    handler = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, blank=True, related_name="+"
    )
    asked = models.DateTimeField(null=True, blank=True)
    emailed = models.DateTimeField(null=True, blank=True)
    called = models.DateTimeField(null=True, blank=True)
    closing_emailed = models.DateTimeField(null=True, blank=True)
    closing_called = models.DateTimeField(null=True, blank=True)
    cause = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="effects"
    )

    class Meta:
        ordering = ["-opened", "-pk"]
        permissions = [("can_handle_regression", "Can acknowledge, accept and comment on regressions")]
        indexes = [models.Index(fields=["fate", "-opened"], name="regression_list")]
        constraints = [
            models.UniqueConstraint(
                fields=["configuration", "metric"],
                condition=Q(fate__in=STANDING_FATES),
                name="regression_one_standing_a_metric",
            ),
            models.CheckConstraint(
                condition=Q(fate__in=RegressionStatus.values), name="regression_fate_known"
            ),
            models.CheckConstraint(
                condition=Q(fate__in=STANDING_FATES, closed__isnull=True)
                | Q(fate__in=CLOSED_FATES, closed__isnull=False),
                name="regression_closed_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return f"regression {self.pk}: {self.metric} of {self.configuration}"

    def get_absolute_url(self) -> str:
        return reverse("dashboard:regression", args=[self.pk])

    @property
    def stands(self) -> bool:
        return self.fate in STANDING_FATES

    @property
    def is_against_reference(self) -> bool:
        """Whether its baseline is the run that is pinned now."""
        pinned = self.configuration.reference
        return pinned is not None and getattr(pinned, self.metric) == self.baseline

    @property
    def told(self) -> tuple[str, str]:
        """The columns that say when the notices of what it is now were delivered: e-mail, webhook."""
        return ("emailed", "called") if self.stands else ("closing_emailed", "closing_called")

    @property
    def change(self) -> float:
        """The newest value relative to the baseline."""
        return self.value / self.baseline - 1


class RegressionComment(models.Model):
    regression = models.ForeignKey(Regression, on_delete=models.CASCADE, related_name="comments")
    who = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.SET_NULL, null=True, related_name="+")
    by = models.CharField(max_length=150)
    text = models.CharField(max_length=2000)
    written = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["written", "pk"]

    def __str__(self) -> str:
        return f"{self.by}: {self.text[:60]}"

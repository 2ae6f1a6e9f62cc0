"""The operator's side: define sweeps, see what they unfold into, start, cancel, retry; look at results.

Everything that changes a row goes through `services`; starting, cancelling and retrying need the
permission `dashboard.can_run_sweep`, a POST, and leave a log entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html

from dashboard.audit import log as audit
from dashboard.errors import DashboardError
from dashboard.models import (
    AuditEntry,
    Configuration,
    Measurement,
    Point,
    Regression,
    Sweep,
    SweepRun,
    Trigger,
)
from dashboard.regressions.services import judge_later
from dashboard.sweeps import definitions, selectors, services
from dashboard.sweeps.admin_forms import SweepForm
from dashboard.sweeps.estimates import estimate
from dashboard.sweeps.matrix import expand
from dashboard.templatetags.figures import percent, speed

CAN_RUN = "dashboard.can_run_sweep"

# Django's classes take type parameters only in the stubs.
if TYPE_CHECKING:
    _ModelAdmin = admin.ModelAdmin[Any]
    _SweepModelAdmin = admin.ModelAdmin[Sweep]
    _PointTabularInline = admin.TabularInline[Point, SweepRun]
else:
    _ModelAdmin = _SweepModelAdmin = admin.ModelAdmin
    _PointTabularInline = admin.TabularInline


@admin.register(Sweep)
class SweepAdmin(_SweepModelAdmin):
    form = SweepForm
    change_form_template = "admin/dashboard/sweep/change_form.html"
    list_display = ("name", "description", "points", "repeats", "crontab", "last")
    search_fields = ("name", "description")
    actions = ("run_now",)
    fieldsets = (
        (None, {"fields": ("name", "description")}),
        (
            "Matrix",
            {
                "fields": (
                    "models",
                    "backends",
                    "devices",
                    "sync",
                    "streams",
                    "context",
                    "tokens",
                    "sampling",
                    "repeats",
                    "trace",
                ),
                "description": "Every combination becomes one benchmark point.",
            },
        ),
        ("Schedule", {"fields": ("schedule_crontab", "schedule_enabled")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Sweep]:  # noqa: ARG002
        return selectors.sweeps()

    @admin.display(description="points")
    def points(self, sweep: Sweep) -> int:
        return len(expand(sweep.matrix))

    @admin.display(description="schedule (UTC)")
    def crontab(self, sweep: Sweep) -> str:
        if not sweep.schedule:
            return "none"
        return sweep.crontab if sweep.schedule.enabled else f"{sweep.crontab}, paused"

    @admin.display(description="last run")
    def last(self, sweep: Any) -> str:
        if not sweep.last_run:
            return "never"
        return format_html(
            '<a href="{}">{}</a>',
            reverse("dashboard:sweep_run", args=[sweep.last_run]),
            sweep.last_state,
        )

    def save_model(self, request: HttpRequest, obj: Sweep, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        definitions.set_schedule(
            sweep=obj,
            crontab=form.cleaned_data["schedule_crontab"],
            enabled=form.cleaned_data["schedule_enabled"],
        )
        points = len(expand(obj.matrix))
        times = f"at {obj.crontab}" if obj.crontab else "no schedule"
        audit.record(
            "sweep changed" if change else "sweep defined",
            obj,
            who=_who(request),
            url=reverse("admin:dashboard_sweep_change", args=[obj.pk]),
            detail=f"{points} points, {obj.repeats} repeats, {times}",
        )

    def delete_model(self, request: HttpRequest, obj: Sweep) -> None:
        audit.record("sweep deleted", obj, who=_who(request))
        definitions.delete_sweep(sweep=obj)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Sweep]) -> None:
        for sweep in queryset:
            self.delete_model(request, sweep)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("preview/", view(self.preview), name="dashboard_sweep_preview"),
            path("<int:pk>/run/", view(self.run_view), name="dashboard_sweep_run"),
            *super().get_urls(),
        ]

    def preview(self, request: HttpRequest) -> HttpResponse:
        """The points that the form's matrix unfolds into, saved or not."""
        if request.method != "POST" or not (
            self.has_add_permission(request) or self.has_change_permission(request)
        ):
            raise PermissionDenied
        form = SweepForm(request.POST)
        form.full_clean()
        wrong = {k: v for k, v in form.errors.items() if k not in ("name", "description")}
        specs = [] if wrong else expand(form.matrix())
        context = {
            **self.admin_site.each_context(request),
            "title": "Preview of points",
            "opts": self.opts,
            "name": request.POST.get("name", ""),
            "problems": [str(message) for messages_ in wrong.values() for message in messages_],
            "specs": specs,
            "repeats": form.cleaned_data.get("repeats"),
            "estimate": estimate(specs) if specs else None,
        }
        return TemplateResponse(request, "admin/dashboard/sweep/preview.html", context)

    def run_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        """GET asks for confirmation with the list of points, POST starts."""
        if not request.user.has_perm(CAN_RUN):
            raise PermissionDenied
        sweep = get_object_or_404(Sweep, pk=pk)
        if request.method == "POST":
            run = _start(request, sweep)
            if not run:
                return redirect("admin:dashboard_sweep_change", pk)
            return redirect(run)
        specs = expand(sweep.matrix)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Run {sweep.name} now?",
            "opts": self.opts,
            "name": sweep.name,
            "sweep": sweep,
            "specs": specs,
            "repeats": sweep.repeats,
            "estimate": estimate(specs),
        }
        return TemplateResponse(request, "admin/dashboard/sweep/preview.html", context)

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CAN_RUN)

    @admin.action(description="Run the selected sweeps now", permissions=["run"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Sweep]) -> HttpResponse | None:
        runs = [run for sweep in queryset if (run := _start(request, sweep))]
        if len(runs) == 1:
            return redirect(runs[0])
        for run in runs:
            messages.success(
                request, format_html('Started <a href="{}">{}</a>.', run.get_absolute_url(), run)
            )
        return None


def _start(request: HttpRequest, sweep: Sweep) -> SweepRun | None:
    """Starts it; a refusal becomes a message."""
    try:
        run = services.start_sweep(sweep=sweep, trigger=Trigger.ADMIN, who=_who(request))
    except DashboardError as error:
        messages.error(request, str(error))
        return None
    except ValidationError as error:
        messages.error(request, " ".join(error.messages))
        return None
    return run


class ReadOnly(_ModelAdmin):
    """Rows that only the services write."""

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


class PointInline(_PointTabularInline):
    model = Point
    fields = ("index", "attempt", "sampled", "state", "worker", "error", "started", "ended")
    readonly_fields = fields
    ordering = ("index", "attempt")
    can_delete = False
    extra = 0

    @admin.display(description="sampling")
    def sampled(self, point: Point) -> str:
        return point.sampling_label

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(SweepRun)
class SweepRunAdmin(ReadOnly):
    change_form_template = "admin/dashboard/sweeprun/change_form.html"
    list_display = ("__str__", "state", "progress", "trigger", "who", "attempt", "created", "ended", "page")
    list_filter = ("state", "trigger", "name")
    list_select_related = ("who",)
    date_hierarchy = "created"
    inlines = (PointInline,)
    actions = ("cancel_runs", "retry_runs")

    @admin.display(description="points")
    def progress(self, run: SweepRun) -> str:
        return f"{run.done} of {run.total}"

    @admin.display(description="page")
    def page(self, run: SweepRun) -> str:
        return format_html('<a href="{}">open</a>', run.get_absolute_url())

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        if isinstance(obj, SweepRun) and obj.active:
            return False  # cancel it first: its points are in the inbox
        return super().has_delete_permission(request, obj)

    def get_urls(self) -> list[URLPattern]:
        view = self.admin_site.admin_view
        return [
            path("<int:pk>/cancel/", view(self.cancel_view), name="dashboard_sweeprun_cancel"),
            path("<int:pk>/retry/", view(self.retry_view), name="dashboard_sweeprun_retry"),
            *super().get_urls(),
        ]

    def cancel_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        run = self._require_permission(request, pk)
        _tell(request, lambda: _cancel(request, run))
        return redirect(run)

    def retry_view(self, request: HttpRequest, pk: int) -> HttpResponse:
        run = self._require_permission(request, pk)
        _tell(request, lambda: _retry(request, run))
        return redirect(run)

    def _require_permission(self, request: HttpRequest, pk: int) -> SweepRun:
        if request.method != "POST" or not request.user.has_perm(CAN_RUN):
            raise PermissionDenied
        return get_object_or_404(SweepRun, pk=pk)

    def has_run_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(CAN_RUN)

    @admin.action(description="Cancel the selected runs", permissions=["run"])
    def cancel_runs(self, request: HttpRequest, queryset: QuerySet[SweepRun]) -> None:
        for run in queryset:
            _tell(request, lambda run=run: _cancel(request, run))

    @admin.action(description="Retry the failed points of the selected runs", permissions=["run"])
    def retry_runs(self, request: HttpRequest, queryset: QuerySet[SweepRun]) -> None:
        for run in queryset:
            _tell(request, lambda run=run: _retry(request, run))


def _who(request: HttpRequest) -> Any:
    """The account; the admin lets nobody in without one."""
    return request.user


def _cancel(request: HttpRequest, run: SweepRun) -> str:
    services.cancel(run=run, who=_who(request))
    return f"Run {run.pk} ({run.name}) is cancelled."


def _retry(request: HttpRequest, run: SweepRun) -> str:
    count = services.retry_failed(run=run, who=_who(request))
    return f"Run {run.pk} ({run.name}): {count} failed point{'' if count == 1 else 's'} queued again."


def _tell(request: HttpRequest, verb: Any) -> None:
    """Does it and says how it went."""
    try:
        messages.success(request, verb())
    except DashboardError as error:
        messages.error(request, str(error))


@admin.register(Measurement)
class MeasurementAdmin(ReadOnly):
    list_display = (
        "created",
        "configuration",
        "decode",
        "mbu_of_measured",
        "ttft_ms",
        "verified",
        "source",
        "page",
    )
    list_filter = (
        "verified",
        "configuration__backend",
        "configuration__model",
        "configuration__hardware",
    )
    list_select_related = ("configuration",)
    search_fields = ("git_sha", "source", "configuration__model")
    date_hierarchy = "created"

    def get_queryset(self, request: HttpRequest) -> QuerySet[Measurement]:
        return super().get_queryset(request).defer("document")

    @admin.display(description="tok/s", ordering="tok_s")
    def decode(self, row: Measurement) -> str:
        return speed(row.tok_s)

    @admin.display(description="MBU of measured", ordering="mbu_measured")
    def mbu_of_measured(self, row: Measurement) -> str:
        return percent(row.mbu_measured)

    @admin.display(description="page")
    def page(self, row: Measurement) -> str:
        return format_html('<a href="{}">open</a>', row.get_absolute_url())


@admin.register(AuditEntry)
class AuditEntryAdmin(ReadOnly):
    list_display = ("when", "by", "act", "about", "detail")
    list_filter = ("act",)
    search_fields = ("by", "about", "detail")
    date_hierarchy = "when"

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False


@admin.register(Regression)
class RegressionAdmin(ReadOnly):
    """To look things up; they are handled on their pages."""

    list_display = ("opened", "configuration", "metric", "fate", "closed", "page")
    list_filter = ("fate", "metric")
    list_select_related = ("configuration",)

    @admin.display(description="page")
    def page(self, row: Regression) -> str:
        return format_html('<a href="{}">open</a>', row.get_absolute_url())


@admin.register(Configuration)
class ConfigurationAdmin(_ModelAdmin):
    """Only the threshold of its regressions can be changed: the rest is what was measured."""

    fields = (*Configuration.NATURAL_KEY, "threshold")
    readonly_fields = Configuration.NATURAL_KEY
    list_display = Configuration.NATURAL_KEY
    list_filter = ("backend", "model")

    def save_model(self, request: HttpRequest, obj: Configuration, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if "threshold" in form.changed_data:
            said = f"{obj.threshold:.1%}" if obj.threshold else "from its own spread"
            audit.record("threshold changed", obj, who=_who(request), detail=said)
            judge_later([obj.pk])

    def has_add_permission(self, request: HttpRequest) -> bool:  # noqa: ARG002
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:  # noqa: ARG002
        return False

"""Queries for sweeps, their runs and their points. Nothing here changes a row."""

from __future__ import annotations

from django.db.models import Count, OuterRef, Q, QuerySet, Subquery

from dashboard.models import ACTIVE, Measurement, Point, State, Sweep, SweepRun


def sweeps() -> QuerySet[Sweep]:
    """Every sweep with `active_run` (the key of its run that has not ended) and `last_state`."""
    runs = SweepRun.objects.filter(sweep=OuterRef("pk"))
    return Sweep.objects.select_related("schedule__crontab").annotate(
        active_run=Subquery(runs.filter(state__in=ACTIVE).values("pk")[:1]),
        last_run=Subquery(runs.values("pk")[:1]),
        last_state=Subquery(runs.values("state")[:1]),
    )


def sweep_runs() -> QuerySet[SweepRun]:
    """Runs, newest first, with how many of their points `failed`."""
    return (
        SweepRun.objects.select_related("who", "sweep")
        .annotate(failed=Count("points", filter=Q(points__current=True, points__state=State.FAILED)))
        .order_by("-created", "-pk")
    )


def sweep_run(pk: int) -> SweepRun:
    """One run with its `failed` count. Raises SweepRun.DoesNotExist."""
    return sweep_runs().get(pk=pk)


def sweep_run_tag(pk: int) -> str | None:
    """What the run's page shows, as a text that changes with it. One small query; None without a run."""
    run = SweepRun.objects.filter(pk=pk).only("version", "state", "heartbeat").first()
    return None if run is None else run.tag


def points(run: SweepRun) -> QuerySet[Point]:
    """The run's points with their measurements; earlier attempts stand before the one that replaced them."""
    return Point.objects.filter(run=run).select_related("measurement").order_by("index", "attempt")


def failed_points() -> QuerySet[Point]:
    """Every failure that was ever stored, newest first, retried or not."""
    return Point.objects.filter(state=State.FAILED).select_related("run").order_by("-ended", "-pk")


def failures_like(row: Measurement, most: int = 10) -> QuerySet[Point]:
    """The newest failed points that asked for what `row` measured, whatever hardware they met."""
    wanted = row.configuration
    return (
        Point.objects.filter(
            state=State.FAILED,
            model__in=(wanted.model, f"random:{wanted.model}"),
            backend=wanted.backend,
            context=wanted.context,
            tokens=wanted.tokens,
        )
        .select_related("run")
        .order_by("-ended", "-pk")[:most]
    )

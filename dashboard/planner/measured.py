"""What the database has to put beside the roofline: measured speeds, and the bandwidths they were read at."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import ClassVar

from django.db.models import OuterRef, Subquery
from django.urls import reverse

from dashboard.models import Configuration, Measurement

MAX_POINTS = 60
"""Newest verified measurements, one a configuration; a chart with more is a cloud."""
READINGS = 10
"""How many of a machine's newest bandwidth readings its best is taken from."""
LOOKED_AT = 500
"""Newest measurements whose readings are looked at."""


@dataclass(frozen=True, slots=True)
class MeasuredPoint:
    """The newest speed of a configuration. `bytes` is what a token read; `read_gbs` of all its devices."""

    pk: int
    model: str
    backend: str
    hardware: str
    context: int
    created: datetime
    tok_s: float
    bytes: float
    mbu_measured: float | None
    read_gbs: float
    verified_kind: str
    verified: ClassVar = True
    """All of them are; the flag beside a speed asks."""

    @property
    def url(self) -> str:
        return reverse("dashboard:run", args=[self.pk])


@dataclass(frozen=True, slots=True)
class MeasuredHardware:
    """GB/s (10^9 bytes) that all devices of one kind of machine read together: the best of READINGS."""

    name: str
    gbs: float
    created: datetime


def measured_points() -> list[MeasuredPoint]:
    """The newest verified measurement of each configuration, the newest MAX_POINTS of them. Two queries.

    Those of several streams are left out: a plan is for one.
    """
    newest = (
        Measurement.objects.filter(configuration=OuterRef("pk"), verified=True)
        .order_by("-created", "-pk")
        .values("pk")[:1]
    )
    wanted = (
        Configuration.objects.annotate(newest=Subquery(newest))
        .filter(newest__isnull=False, streams=1)
        .values_list("newest", flat=True)
    )
    rows = (
        Measurement.objects.filter(pk__in=list(wanted))
        .order_by("-created", "-pk")
        .values_list(
            "pk", "configuration__model", "configuration__backend", "configuration__hardware",
            "configuration__context", "created", "tok_s", "document__model__bytes_per_token",
            "mbu_measured", "document__devices", "verified_kind",
        )
    )  # fmt: skip
    return [
        MeasuredPoint(
            pk, model, backend, hardware, context, created, tok_s,
            bytes=float(read["weights"] + read["kv"]),
            mbu_measured=mbu,
            read_gbs=sum(float(device["measured_gbs"]) for device in devices),
            verified_kind=kind,
        )
        for pk, model, backend, hardware, context, created, tok_s, read, mbu, devices, kind
        in rows[:MAX_POINTS]
    ]  # fmt: skip


def measured_hardware() -> list[MeasuredHardware]:
    """Each kind of machine whose bandwidth was measured, with the best of its newest readings. One query.

    Not the newest alone: a machine that was busy with something else reads less than it can.
    """
    rows = (
        Measurement.objects.filter(verified=True)
        .order_by("-created", "-pk")
        .values_list("configuration__hardware", "created", "document__devices")[:LOOKED_AT]
    )
    readings: dict[str, list[tuple[float, datetime]]] = {}
    for name, created, devices in rows:
        each = [float(device["measured_gbs"]) for device in devices]
        of_one = readings.setdefault(name, [])
        if all(gbs > 0 for gbs in each) and len(of_one) < READINGS:
            of_one.append((sum(each), created))
    return [MeasuredHardware(name, *max(of_one)) for name, of_one in readings.items() if of_one]


def usual_utilisation(points: list[MeasuredPoint]) -> float | None:
    """The median MBU of what was measured, 0 to 1; None if none was."""
    return median(known) if (known := [p.mbu_measured for p in points if p.mbu_measured]) else None

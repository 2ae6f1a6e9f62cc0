"""The overview as values: groups of configurations, each with its newest figures and its scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from dashboard.measurements.selectors import Newest, measurements_by_key
from dashboard.models import Configuration, Measurement, MetricStatus, Peer
from dashboard.overview import selectors
from dashboard.overview.published import devices_of, published_of
from dashboard.overview.scale import Mark, Scale, scale
from dashboard.overview.sparkline import Sparkline, sparkline
from dashboard.regressions.selectors import standings_of
from engine.backends.base import MAILBOX

ROWS_A_GROUP = 4
"""Configurations of one hardware, model and backend on the page; the rest is a link away."""


@dataclass(frozen=True, slots=True)
class Row:
    """One configuration: its newest measurement, its trend, and its speed beside others'."""

    configuration: Configuration
    newest: Measurement
    count: int
    trend: Sparkline | None
    scale: Scale
    standing: MetricStatus | None
    """What the regression rule says of its decode speed; None before it was judged."""


@dataclass(frozen=True, slots=True)
class Group:
    """What ran one model on one backend and hardware, by context. `more` are left out of `rows`."""

    hardware: str
    model: str
    backend: str
    rows: tuple[Row, ...]
    more: int


@dataclass(frozen=True, slots=True)
class Key:
    """A group before its figures are read: its configurations, the one measured last first."""

    hardware: str
    model: str
    backend: str
    members: tuple[Newest, ...]

    @property
    def shown(self) -> list[Newest]:
        """Those that have a row: what only shows the worth of mailboxes comes after all others."""
        return sorted(self.members, key=lambda one: one.configuration.sync != MAILBOX)[:ROWS_A_GROUP]


def group_keys(newest: Sequence[Newest]) -> list[Key]:
    """The groups, by model, then by how many devices there are."""
    ordered = sorted(newest, key=_group_of)
    keys = [Key(*group, tuple(_by_age(list(members)))) for group, members in groupby(ordered, _group_of)]
    return sorted(keys, key=lambda key: (key.model, key.members[0].configuration.devices, key.hardware))


def _group_of(one: Newest) -> tuple[str, str, str]:
    return one.configuration.hardware, one.configuration.model, one.configuration.backend


def _by_age(members: list[Newest]) -> list[Newest]:
    return sorted(members, key=lambda n: (n.created, n.measurement), reverse=True)


def groups(keys: Sequence[Key]) -> list[Group]:
    """Those groups with their figures. Four queries."""
    shown = [one for key in keys for one in key.shown]
    newest = measurements_by_key(one.measurement for one in shown)
    trends = selectors.trends(shown)
    peers = selectors.best_peers([one.configuration for one in shown])
    standings = standings_of(one.configuration.pk for one in shown)
    found = []
    for key in keys:
        members = sorted(key.shown, key=_place)
        rows = tuple(
            _row(
                one,
                newest[one.measurement],
                trends[one.configuration.pk],
                peers.get(one.configuration.pk),
                standings.get(one.configuration.pk),
            )
            for one in members
            if one.measurement in newest
        )
        found.append(Group(key.hardware, key.model, key.backend, rows, len(key.members) - len(rows)))
    return found


def _place(one: Newest) -> tuple[int, int, list[str]]:
    """By context; where that is the same, the ordinary manner comes first."""
    return one.configuration.context, one.configuration.tokens, one.configuration.manner


def _row(
    one: Newest, newest: Measurement, speeds: list[float], peer: Peer | None, standing: MetricStatus | None
) -> Row:
    marks = [*_peer_mark(peer), *_published_marks(one.configuration), *_ceiling_mark(newest)]
    drawn = scale(newest.tok_s, marks)
    return Row(one.configuration, newest, one.runs, sparkline(speeds), drawn, standing)


def _peer_mark(peer: Peer | None) -> list[Mark]:
    if peer is None:
        return []
    return [Mark("peer", peer.tok_s, peer.name, f"measured on the same hardware, n = {peer.samples}")]


def _ceiling_mark(newest: Measurement) -> list[Mark]:
    """What the bandwidth allows: the speed at which MBU would be 1, so bandwidth / bytes a token."""
    for mbu, of in ((newest.mbu_measured, "measured"), (newest.mbu_datasheet, "datasheet")):
        if mbu:
            return [
                Mark(
                    "ceiling",
                    newest.tok_s / mbu,
                    f"allowed by the {of} bandwidth",
                    "bandwidth / bytes a token",
                )
            ]
    return []


def _published_marks(configuration: Configuration) -> list[Mark]:
    return [
        Mark("published", p.tok_s, f"{p.who}, {devices_of(p)}", p.source) for p in published_of(configuration)
    ]

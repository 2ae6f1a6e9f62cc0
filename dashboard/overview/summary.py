"""First on the overview: the fastest run of each model on each hardware, beside others, on one axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboard.charts.scale import LinearScale
from dashboard.measurements.selectors import Newest, measurements_by_key
from dashboard.models import Measurement, Peer
from dashboard.overview.published import published_of
from dashboard.overview.selectors import best_peers
from dashboard.sweeps.matrix import GREEDY
from engine.measuring.roofline import Published
from engine.models.presets import preset_names

WIDTH = 100.0
MOST = 24
"""Rows that a reader takes in at a glance; the table below has every configuration."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Another's speed: how many times as fast ours is, whose it is, and its place on the axis."""

    times: float
    tok_s: float
    name: str
    context: int | None
    x: float


@dataclass(frozen=True, slots=True)
class Fastest:
    """One model on one hardware. `bar` and the places of others are in percent of the common axis."""

    model: str
    hardware: str
    newest: Measurement
    bar: float
    peer: Beside | None
    published: Beside | None
    share: float | None
    """Of the speed that the bandwidth allows: measured where it was, else the datasheet's."""
    sampled: Measurement | None


@dataclass(frozen=True, slots=True)
class _Candidates:
    greedy: Measurement
    sampled: Measurement | None
    all: tuple[Measurement, ...]


def summary(newest: Sequence[Newest]) -> list[Fastest]:
    """By model and then the fastest first. Two queries.

    Left out are runs whose tokens differ, and what is no headline (`Configuration.is_headline`): several
    streams, where others give the speed of one, and a cache in FP8.
    """
    eligible = [one for one in newest if one.configuration.is_headline]
    wanted = [one for one in eligible if not _is_variant(one.configuration.model, eligible)]
    by_key = measurements_by_key(one.measurement for one in wanted)
    groups: dict[tuple[str, str], list[Measurement]] = defaultdict(list)
    for one in wanted:
        row = by_key.get(one.measurement)
        if row is not None and row.verified:
            row.configuration = one.configuration
            groups[one.configuration.model, one.configuration.hardware].append(row)
    peers = best_peers([one.configuration for one in wanted])
    chosen = {key: _candidates(rows) for key, rows in groups.items()}
    axis = _axis(chosen, peers)
    rows = [_row(*key, of, peers, axis) for key, of in chosen.items()]
    return sorted(rows, key=lambda row: (row.model, -row.newest.tok_s))[:MOST]


def _is_variant(model: str, newest: Sequence[Newest]) -> bool:
    """Whether a preset was measured too, of which this is a variant (its name with more behind a dash)."""
    measured = {one.configuration.model for one in newest}
    return any(model.startswith(f"{name}-") and name in measured for name in preset_names())


def _candidates(rows: Sequence[Measurement]) -> _Candidates:
    """The fastest greedy run (of all, if none is greedy), and the fastest that sampled."""
    greedy = [row for row in rows if row.configuration.sampling == GREEDY] or list(rows)
    sampled = [row for row in rows if row.configuration.sampling != GREEDY]
    return _Candidates(_fastest(greedy), _fastest(sampled) if sampled else None, tuple(greedy))


def _fastest(rows: Sequence[Measurement]) -> Measurement:
    return max(rows, key=lambda row: row.tok_s)


def _axis(chosen: Mapping[tuple[str, str], _Candidates], peers: Mapping[int, Peer]) -> LinearScale:
    speeds = [of.greedy.tok_s for of in chosen.values()]
    speeds += [peers[row.configuration_id].tok_s for of in chosen.values() for row in of.all
               if row.configuration_id in peers]  # fmt: skip
    speeds += [p.tok_s for of in chosen.values() if (p := _find_published(of.greedy)) is not None]
    return LinearScale(0.0, max(speeds, default=1.0), 0.0, WIDTH)


def _row(model: str, hardware: str, of: _Candidates, peers: Mapping[int, Peer], axis: LinearScale) -> Fastest:
    beside = [row for row in of.all if row.configuration_id in peers]
    best = of.greedy
    others = _find_published(best)
    return Fastest(
        model,
        hardware,
        best,
        axis(best.tok_s),
        _beside_peer(_fastest(beside), peers, axis) if beside else None,
        None if others is None else _beside_published(best, others, axis),
        best.mbu_measured or best.mbu_datasheet,
        of.sampled,
    )


def _beside_peer(row: Measurement, peers: Mapping[int, Peer], axis: LinearScale) -> Beside:
    """At the peer's own context, where ours may be slower than at the best one."""
    peer = peers[row.configuration_id]
    return Beside(row.tok_s / peer.tok_s, peer.tok_s, peer.name, peer.context, axis(peer.tok_s))


def _find_published(row: Measurement) -> Published | None:
    return next(iter(published_of(row.configuration)), None)


def _beside_published(row: Measurement, other: Published, axis: LinearScale) -> Beside:
    name = f"{other.who}, {other.devices} × {other.hardware}"
    return Beside(row.tok_s / other.tok_s, other.tok_s, name, None, axis(other.tok_s))

"""The queries of the overview: a fixed number, whatever is stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db.models import Q

from dashboard.measurements.selectors import TREND, Newest
from dashboard.models import Configuration, Measurement, Peer


def trends(chosen: Sequence[Newest]) -> dict[int, list[float]]:
    """The last TREND speeds of each configuration, oldest first. One query."""
    if not chosen:
        return {}
    wanted = Q()
    for one in chosen:
        wanted |= Q(configuration=one.configuration.pk, created__gte=one.trend_since)
    rows = (
        Measurement.objects.filter(wanted).order_by("created", "pk").values_list("configuration_id", "tok_s")
    )
    found: dict[int, list[float]] = {one.configuration.pk: [] for one in chosen}
    for key, speed in rows:
        found[key].append(speed)
    return {key: speeds[-TREND:] for key, speeds in found.items()}


def best_peers(configurations: Iterable[Configuration]) -> dict[int, Peer]:
    """The fastest decode of a peer on the same model, hardware and context, by configuration. One query.

    Peers answer one request with a cache in 16 bits: what is no headline has none.
    """
    eligible = [c for c in configurations if c.is_headline]
    wanted = {(c.model, c.hardware, c.context): [] for c in eligible}  # type: dict[tuple[str, str, int], list[Peer]]
    models = {model for model, _, _ in wanted}
    decodes = Peer.objects.filter(model__in=models, measures=Peer.Measures.DECODE)
    for peer in decodes.order_by("-tok_s"):
        if (key := (peer.model, peer.hardware, peer.context)) in wanted:
            wanted[key].append(peer)
    return {c.pk: peers[0] for c in eligible if (peers := wanted[c.model, c.hardware, c.context])}

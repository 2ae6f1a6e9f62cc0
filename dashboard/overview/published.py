"""What others published of a model's shape on a kind of device."""

from __future__ import annotations

from dashboard.models import Configuration
from engine.measuring.bandwidth import row_of
from engine.measuring.roofline import PUBLISHED, Published


def published_of(configuration: Configuration) -> list[Published]:
    """What was published of the same model shape on the same kind of device, however many of them.

    Nothing for what is no headline: what is published is the speed of one request, its cache in 16 bits.
    """
    if not configuration.is_headline:
        return []
    model, kind = configuration.model.removeprefix("random:"), _kind(configuration.hardware)
    return [one for one in PUBLISHED if one.model == model and one.hardware == kind]


def devices_of(published: Published) -> str:
    return f"{published.devices} x {published.hardware}" if published.devices > 1 else published.hardware


def _kind(hardware: str) -> str:
    """The short name of a driver's device name ("2 x NVIDIA H200" is "H200"); empty if it is not known."""
    row = row_of(hardware)
    return row.name if row else ""

"""A badge for a README: one configuration's newest speed, coloured by how it stands."""

from __future__ import annotations

from dataclasses import dataclass

from dashboard.models import Label, Measurement, MetricStatus
from dashboard.templatetags.figures import speed

CHARACTER = 6.4
"""Mean width of a character of the fonts named in the template, at 11 px; `textLength` makes it exact."""
PADDING = 10.0
COLOURS = {
    Label.REGRESSION: "#b3261e",
    Label.SUSPICIOUS: "#855600",
    Label.STEADY: "#19764a",
    Label.IMPROVEMENT: "#19764a",
    Label.INSUFFICIENT: "#575c66",
}
LONGEST = 60


@dataclass(frozen=True, slots=True)
class Badge:
    """Two texts side by side; widths and places in pixels."""

    label: str
    value: str
    colour: str
    label_width: float
    value_width: float

    @property
    def width(self) -> float:
        return self.label_width + self.value_width

    @property
    def label_x(self) -> float:
        return self.label_width / 2

    @property
    def value_x(self) -> float:
        return self.label_width + self.value_width / 2

    @property
    def label_text(self) -> float:
        return self.label_width - PADDING

    @property
    def value_text(self) -> float:
        return self.value_width - PADDING


def badge(newest: Measurement, standing: MetricStatus | None, label: str = "") -> Badge:
    """`label` stands in place of the model's and the backend's name."""
    configuration = newest.configuration
    left = (label or f"{configuration.model} on {configuration.backend}")[:LONGEST]
    right = f"{speed(newest.tok_s)} tok/s"
    colour = COLOURS[Label(standing.label) if standing else Label.INSUFFICIENT]
    return Badge(left, right, colour, _width(left), _width(right))


def _width(text: str) -> float:
    return round(len(text) * CHARACTER + PADDING, 1)

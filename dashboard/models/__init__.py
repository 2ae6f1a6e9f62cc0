"""The rows behind the dashboard. Verbs live in `services`, queries in `selectors`."""

from dashboard.models.measurements import Configuration, Measurement
from dashboard.models.sweeps import ACTIVE, ENDED, Point, State, Sweep, SweepRun, Trigger

__all__ = [
    "ACTIVE",
    "ENDED",
    "Configuration",
    "Measurement",
    "Point",
    "State",
    "Sweep",
    "SweepRun",
    "Trigger",
]

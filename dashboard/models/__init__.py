"""The rows behind the dashboard. Verbs live in `services`, queries in `selectors`."""

from dashboard.models.annotations import Annotation
from dashboard.models.measurements import Configuration, Measurement, Spread
from dashboard.models.peers import Peer
from dashboard.models.sweeps import ACTIVE, ENDED, Point, State, Sweep, SweepRun, Trigger
from dashboard.models.traces import Trace

__all__ = [
    "ACTIVE",
    "ENDED",
    "Annotation",
    "Configuration",
    "Measurement",
    "Peer",
    "Point",
    "Spread",
    "State",
    "Sweep",
    "SweepRun",
    "Trace",
    "Trigger",
]

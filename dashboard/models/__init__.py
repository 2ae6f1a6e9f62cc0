"""The rows behind the dashboard. Verbs live in `services`, queries in `selectors`."""

from dashboard.models.annotations import Annotation
from dashboard.models.audit import AuditEntry
from dashboard.models.measurements import Configuration, Measurement, MetricInterval
from dashboard.models.peers import Peer
from dashboard.models.regressions import (
    CLOSED_FATES,
    STANDING_FATES,
    Label,
    MetricStatus,
    Regression,
    RegressionComment,
    RegressionStatus,
)
from dashboard.models.sweeps import ACTIVE, ENDED, DeviceHold, Point, State, Sweep, SweepRun, Trigger
from dashboard.models.traces import Trace

__all__ = [
    "ACTIVE",
    "CLOSED_FATES",
    "ENDED",
    "STANDING_FATES",
    "Annotation",
    "AuditEntry",
    "Configuration",
    "DeviceHold",
    "Label",
    "Measurement",
    "MetricInterval",
    "MetricStatus",
    "Peer",
    "Point",
    "Regression",
    "RegressionComment",
    "RegressionStatus",
    "State",
    "Sweep",
    "SweepRun",
    "Trace",
    "Trigger",
]

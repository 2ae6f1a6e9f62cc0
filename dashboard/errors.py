"""What the dashboard's services refuse. The messages are shown to people as they stand."""


class DashboardError(Exception):
    """Base of the refusals below."""


class SweepBusy(DashboardError):
    """The sweep is already queued or running; starting it twice would measure twice."""


class NothingToDo(DashboardError):
    """The run is not in a state that the verb applies to."""


class UnknownSweep(DashboardError):
    """No sweep and no preset has that name."""

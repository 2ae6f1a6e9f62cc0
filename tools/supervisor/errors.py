"""What keeps the supervisor from starting, in one sentence each."""


class SupervisorError(Exception):
    """The message names what is in the way and the way around it; it is all that a user is shown."""


class Stopped(Exception):
    """Whoever asked for it does not want it any more."""

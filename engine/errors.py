"""The errors that the engine raises on purpose, one class a layer.

Each message names the thing, the value it had, what is allowed, and the next step, because it is shown
to a person as it stands: the command line prints it on one line, the worker sends it as an error frame. What
else is told of it is the row `reply` of one table.
"""

from engine import replies
from engine.replies import Reply


class EngineError(Exception):
    """Base of every error that is safe to show to a user."""

    reply: Reply = replies.BAD_REQUEST


class ConfigError(EngineError):
    """A model's shape contradicts itself or is not supported."""

    reply = replies.CANNOT_RUN


class CheckpointError(EngineError):
    """A checkpoint is missing, truncated, corrupt, or of an unknown kind."""

    reply = replies.CANNOT_RUN


class TokenizerError(EngineError):
    """A tokenizer or chat template cannot be loaded or applied."""


class RequestError(EngineError):
    """A request asks for something that this model cannot do (too long, unknown token, bad range)."""


class NoRoom(RequestError):
    """There is no room for a request beside those in flight; there will be once one of them has ended."""


class BackendUnavailable(EngineError):
    """This machine lacks what a backend needs (a GPU, a compiler, a driver)."""

    reply = replies.CANNOT_RUN


class DoesNotFit(BackendUnavailable):
    """A model takes more memory than the devices have free; `even_alone`: than they have at all."""

    def __init__(self, message: str, *, even_alone: bool = False) -> None:
        super().__init__(message)
        self.even_alone = even_alone


class BackendFailure(EngineError):
    """A backend that had started broke down (device lost, watchdog fired)."""

    reply = replies.BACKEND_FAILED


class DeviceLost(BackendFailure):
    """A device is gone for this process: nothing runs on it again until the process is started afresh."""


class MeasurementError(EngineError):
    """A measurement file does not follow its schema."""

    reply = replies.BAD_MEASUREMENT

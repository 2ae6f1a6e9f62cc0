"""What daphne served, as events of the same log as everything else."""

from __future__ import annotations

from typing import Any

import structlog

from config.alive import ALIVE

log = structlog.get_logger("access")
UNTOLD = {ALIVE}
"""Asked every few seconds by whoever watches the process."""
PATH_CHARS = 300


class AccessLog:
    """In place of daphne's own, which writes lines of text to a stream."""

    def __init__(self, _stream: Any) -> None:
        pass

    def __call__(self, protocol: str, action: str, details: dict[str, Any]) -> None:
        path = str(details["path"])
        if path.partition("?")[0] in UNTOLD or action == "connecting":
            return
        said: dict[str, Any] = {
            name: details[name] for name in ("method", "status", "size") if name in details
        }
        if "time_taken" in details:
            said["ms"] = round(1000 * details["time_taken"], 1)
        log.info(f"{protocol}_{action}", path=path[:PATH_CHARS], client=details["client"], **said)

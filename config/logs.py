"""Logging: structlog's events and the libraries' records leave through one formatter on stderr."""

from __future__ import annotations

from typing import Any

import structlog
from structlog.typing import Processor


def _shared_processors() -> list[Processor]:
    return [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]


def configure_structlog() -> None:
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *_shared_processors(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )


def logging_config(level: str, *, as_json: bool) -> dict[str, Any]:
    """Django's LOGGING: JSON lines for machines, or plain text for people.

    Tracebacks are plain in both. Where rich is installed structlog would print local variables: prompts
    among them, and seconds of work while a server that is flooded serves nobody.
    """
    plain = structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)
    renderer: Processor = structlog.processors.JSONRenderer() if as_json else plain
    errors: list[Processor] = [structlog.processors.format_exc_info] if as_json else []
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "lines": {
                "()": structlog.stdlib.ProcessorFormatter,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    *errors,
                    renderer,
                ],
                "foreign_pre_chain": _shared_processors(),
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django": {"handlers": [], "propagate": True},
            "django.server": {"handlers": [], "propagate": True},
            "daphne": {"level": "WARNING"},
        },
    }

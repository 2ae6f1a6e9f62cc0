"""What a log line of a failure holds, and what it must not."""

from __future__ import annotations

import io
import logging
import logging.config

import pytest

from config.logs import logging_config


@pytest.mark.parametrize("as_json", [False, True])
def test_a_failure_is_logged_without_the_values_of_variables(as_json):
    """They may be prompts, and a flooded server has seconds of work with large ones."""
    config = logging_config("INFO", as_json=as_json)
    formatter = logging.config.DictConfigurator(config).configure_formatter(config["formatters"]["lines"])
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    log = logging.Logger("test")
    log.addHandler(handler)

    def fail() -> None:
        secret = "a prompt of somebody " * 1000
        raise ValueError(f"{len(secret)} characters")

    try:
        fail()
    except ValueError:
        log.exception("failed")
    assert "ValueError: 21000 characters" in out.getvalue()
    assert "somebody somebody" not in out.getvalue().replace("a prompt of ", "")
    assert len(out.getvalue()) < 2000

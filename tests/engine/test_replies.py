"""The table of what an error is to whoever asked."""

from __future__ import annotations

from http import HTTPStatus

from engine import replies
from engine.errors import BackendFailure, CheckpointError, DeviceLost, EngineError
from engine.replies import Reply, reply_for

ROWS = [row for row in vars(replies).values() if isinstance(row, Reply)]


def test_every_status_is_an_error_and_what_passes_by_itself_is_one_that_clients_try_again() -> None:
    for row in ROWS:
        assert HTTPStatus(row.status) >= 400, row
        assert row.status in (429, 500, 503) if row.retryable else row.status not in (429, 503), row


def test_rows_that_share_a_code_differ_in_what_else_they_say() -> None:
    assert len(set(ROWS)) == len(ROWS)


def test_the_code_of_a_workers_frame_finds_its_row() -> None:
    assert reply_for("too_long", retryable=False) is replies.TOO_LONG
    assert reply_for("bad_request", retryable=False) is replies.BAD_REQUEST


def test_a_code_of_another_version_is_told_as_it_is() -> None:
    assert reply_for("news", retryable=True) == Reply("news", 500, retryable=True)


def test_the_api_says_null_for_what_cannot_be_read_and_else_a_code() -> None:
    assert replies.INVALID.api_code is None
    assert replies.TOO_LONG.api_code == "context_length_exceeded"
    assert replies.QUEUE_FULL.api_code == "queue_full"


def test_a_closer_kind_of_error_has_the_row_of_its_kind_unless_it_names_another() -> None:
    assert EngineError("x").reply is replies.BAD_REQUEST
    assert DeviceLost("x").reply is BackendFailure("x").reply is replies.BACKEND_FAILED
    assert CheckpointError("x").reply is replies.CANNOT_RUN

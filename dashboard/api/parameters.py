"""The parameters of the API, checked. An unknown parameter is refused: a misspelt filter filters nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from django.utils.dateparse import parse_date, parse_datetime
from ninja import Schema
from pydantic import AfterValidator, BeforeValidator, Field

from dashboard.api.paging import Cursor
from dashboard.measurements.metrics import METRICS
from dashboard.models import RegressionStatus

MAX_KEY = (1 << 63) - 1


def _text(value: Any) -> Any:
    if isinstance(value, str) and "\x00" in value:
        raise ValueError("Null characters are not allowed.")
    return value or None


def _moment(value: Any) -> datetime | None:
    """A time whose UTC is a year from 1 to 9999, so that any database can be asked about it."""
    if not value:
        return None
    try:
        found = parse_datetime(str(value))
        if found is None and (day := parse_date(str(value))) is not None:
            found = datetime(day.year, day.month, day.day, tzinfo=UTC)
    except ValueError:
        found = None
    if found is None:
        raise ValueError(
            f"“{str(value)[:40]}” is no time; write 2026-01-31 or 2026-01-31T12:00:00Z (ISO 8601)."
        )
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError as error:
        raise ValueError("That time is outside the years 1 to 9999 in UTC.") from error


def _cursor(value: Any) -> Cursor | None:
    return Cursor.read(str(value)) if value else None


def _one_of(allowed: Iterable[str]) -> Callable[[str], str]:
    names = tuple(allowed)

    def check(value: str) -> str:
        if value not in names:
            raise ValueError(f"Select a valid choice: {', '.join(names)}.")
        return value

    return check


def _at_most(rows: int) -> Callable[[int], int]:
    def check(value: int) -> int:
        if value > rows:
            raise ValueError(f"{value} is too many; a page has at most {rows}.")
        return value

    return check


Text = Annotated[str | None, BeforeValidator(_text)]
Key = Annotated[int | None, Field(ge=1, le=MAX_KEY)]
NeededKey = Annotated[int, Field(ge=1, le=MAX_KEY)]
Commit = Annotated[str | None, Field(pattern=r"^[0-9A-Za-z.+-]{1,64}$", description="a git hash's beginning")]
Moment = Annotated[
    Any, BeforeValidator(_moment), Field(json_schema_extra={"type": "string", "format": "date-time"})
]
Place = Annotated[
    Any, BeforeValidator(_cursor), Field(json_schema_extra={"type": "string"}, description="of `next`")
]
Limit = Annotated[int, Field(ge=1), AfterValidator(_at_most(200))]
MetricName = Annotated[str, AfterValidator(_one_of(METRICS)), Field(json_schema_extra={"enum": [*METRICS]})]
Fate = Annotated[
    str,
    AfterValidator(_one_of(RegressionStatus.values)),
    Field(json_schema_extra={"enum": [*RegressionStatus.values]}),
]


class Runs(Schema):
    configuration: Key = None
    model: Text = None
    backend: Text = None
    hardware: Text = None
    context: Annotated[int | None, Field(ge=0, le=1 << 31)] = None
    sampling: Text = None
    sha: Commit = None
    since: Moment = None
    until: Moment = None
    verified: Literal["true", "false"] | None = None
    limit: Limit = 50
    cursor: Place = None


class Push(Schema):
    """What another tool's results leave unsaid."""

    model: Text = None
    hardware: Text = None
    context: Annotated[int | None, Field(ge=0, le=1 << 31)] = None


class Series(Schema):
    configuration: NeededKey
    metric: MetricName = "tok_s"
    since: Moment = None
    until: Moment = None
    limit: Annotated[int, Field(ge=1), AfterValidator(_at_most(2000))] = 500
    cursor: Place = None


class Configurations(Schema):
    model: Text = None
    backend: Text = None
    hardware: Text = None
    after: Annotated[int, Field(ge=0, le=MAX_KEY)] = 0
    limit: Limit = 50


class Comparison(Schema):
    run: Annotated[list[str], Field(description="two to six; changes are relative to the first")] = []


class Regressions(Schema):
    fate: Fate | None = None
    configuration: Key = None
    before: Key = None
    limit: Limit = 50


class Badge(Schema):
    configuration: NeededKey
    label: Annotated[str | None, Field(max_length=60)] = None

"""The parameters of the API, checked. An unknown parameter is refused: a misspelt filter filters nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from django import forms
from django.http import QueryDict

from dashboard.api.paging import Cursor
from dashboard.compare.forms import MAX_RUNS
from dashboard.measurements.metrics import METRICS
from dashboard.models import RegressionStatus

MAX_KEY = (1 << 63) - 1
YES_NO = {"true": True, "false": False}


class Moment(forms.DateTimeField):
    """A time whose UTC is a year from 1 to 9999, so that any database can be asked about it."""

    def to_python(self, value: Any) -> datetime | None:
        try:
            moment = super().to_python(value)
            return moment.astimezone(UTC) if moment else None
        except OverflowError as error:
            raise forms.ValidationError("That time is outside the years 1 to 9999 in UTC.") from error


class Parameters(forms.Form):
    def __init__(self, query: QueryDict) -> None:
        super().__init__(query)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if unknown := sorted(set(self.data) - set(self.fields)):
            raise forms.ValidationError(
                f"“{unknown[0][:40]}” is no parameter here; there are {', '.join(self.fields)}."
            )
        return cleaned


class Page(Parameters):
    """A part of a list. `most` rows at once, `usual` unless asked otherwise."""

    most, usual = 200, 50
    limit = forms.IntegerField(required=False, min_value=1)
    cursor = forms.CharField(required=False, max_length=40)

    def clean_limit(self) -> int:
        limit = self.cleaned_data["limit"]
        if limit is not None and limit > self.most:
            raise forms.ValidationError(f"{limit} is too many; a page has at most {self.most}.")
        return limit or self.usual

    def clean_cursor(self) -> Cursor | None:
        text = self.cleaned_data["cursor"]
        try:
            return Cursor.read(text) if text else None
        except ValueError as error:
            raise forms.ValidationError(str(error)) from error


class RunsForm(Page):
    configuration = forms.IntegerField(required=False, min_value=1, max_value=MAX_KEY)
    model = forms.CharField(required=False, max_length=200)
    backend = forms.CharField(required=False, max_length=40)
    hardware = forms.CharField(required=False, max_length=300)
    context = forms.IntegerField(required=False, min_value=0, max_value=1 << 31)
    sampling = forms.CharField(required=False, max_length=120)
    sha = forms.RegexField(r"^[0-9A-Za-z.+-]{1,64}$", required=False)
    since = Moment(required=False)
    until = Moment(required=False)
    verified = forms.TypedChoiceField(
        required=False, choices=[(k, k) for k in YES_NO], coerce=YES_NO.__getitem__, empty_value=None
    )


class SeriesForm(Page):
    most, usual = 2000, 500
    configuration = forms.IntegerField(min_value=1, max_value=MAX_KEY)
    metric = forms.ChoiceField(required=False, choices=[(name, name) for name in METRICS])
    since = Moment(required=False)
    until = Moment(required=False)

    def clean_metric(self) -> str:
        return self.cleaned_data["metric"] or "tok_s"


class ConfigurationsForm(Parameters):
    model = forms.CharField(required=False, max_length=200)
    backend = forms.CharField(required=False, max_length=40)
    hardware = forms.CharField(required=False, max_length=300)
    after = forms.IntegerField(required=False, min_value=0, max_value=MAX_KEY)
    limit = forms.IntegerField(required=False, min_value=1, max_value=200)


class ComparisonForm(Parameters):
    """?run=3&run=9: the first is what the others are compared with."""

    run = forms.Field(required=False)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        texts = self.data.getlist("run") if isinstance(self.data, QueryDict) else []
        if not 2 <= len(texts) <= MAX_RUNS:
            raise forms.ValidationError(
                f"{len(texts)} runs are given; a comparison takes 2 to {MAX_RUNS}: ?run=3&run=9."
            )
        for text in texts:
            if not (text.isascii() and text.isdecimal() and 0 < int(text[:25]) <= MAX_KEY):
                raise forms.ValidationError(f"“{text[:40]}” is no run; a run is a whole number, its id.")
        return {**cleaned, "runs": [int(text) for text in texts]}


class RegressionsForm(Parameters):
    fate = forms.ChoiceField(required=False, choices=RegressionStatus.choices)
    configuration = forms.IntegerField(required=False, min_value=1, max_value=MAX_KEY)
    before = forms.IntegerField(required=False, min_value=1, max_value=MAX_KEY)
    limit = forms.IntegerField(required=False, min_value=1, max_value=200)


class BadgeForm(Parameters):
    configuration = forms.IntegerField(min_value=1, max_value=MAX_KEY)
    label = forms.CharField(required=False, max_length=60)

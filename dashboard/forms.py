"""What comes in through URLs and admin forms, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict

from dashboard.selectors import MAX_SERIES, METRICS, SORTS, RunFilter

_ANY = ("", "any")


class RunFilterForm(forms.Form):
    """The filters of the list of runs, in the URL. `facets` are the values that exist."""

    model = forms.ChoiceField(required=False)
    backend = forms.ChoiceField(required=False)
    hardware = forms.ChoiceField(required=False)
    context = forms.TypedChoiceField(required=False, coerce=int, empty_value=None)
    sampling = forms.ChoiceField(required=False)
    sha = forms.RegexField(
        r"^[0-9A-Za-z.+-]{1,64}$",
        required=False,
        label="commit",
        error_messages={"invalid": "A commit is the beginning of a git hash."},
    )
    since = forms.DateField(required=False, widget=forms.DateInput(attrs={"type": "date"}))
    until = forms.DateField(required=False, widget=forms.DateInput(attrs={"type": "date"}))
    verified = forms.TypedChoiceField(
        required=False,
        choices=[_ANY, ("yes", "yes"), ("no", "no")],
        coerce=lambda value: value == "yes",
        empty_value=None,
    )
    sort = forms.ChoiceField(required=False, choices=list(SORTS.items()))

    def __init__(self, query: QueryDict, facets: Mapping[str, list[Any]]) -> None:
        super().__init__(query)
        for name, values in facets.items():
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)  # noqa: S101 - tells mypy what the class body says
            field.choices = [_ANY, *((str(v), str(v)) for v in values)]
            field.error_messages["invalid_choice"] = (
                f"No run has the {name} “%(value)s”; choose one of those listed."
            )

    def filter(self) -> RunFilter:
        """Only after is_valid()."""
        return RunFilter(**{**self.cleaned_data, "sort": self.cleaned_data["sort"] or "-created"})


class HistoryForm(forms.Form):
    """What the history page shows: ?configuration=3&configuration=7&metric=tok_s."""

    metric = forms.ChoiceField(required=False, choices=[(k, v[0]) for k, v in METRICS.items()])
    configuration = forms.TypedMultipleChoiceField(
        required=False,
        coerce=int,
        error_messages={"invalid_choice": "There is no configuration %(value)s; choose from the table."},
    )

    def __init__(self, query: QueryDict, known: list[int]) -> None:
        super().__init__(query)
        field = self.fields["configuration"]
        assert isinstance(field, forms.TypedMultipleChoiceField)  # noqa: S101
        field.choices = [(str(pk), str(pk)) for pk in known]

    def clean_metric(self) -> str:
        return self.cleaned_data["metric"] or "tok_s"

    def clean_configuration(self) -> list[int]:
        chosen: list[int] = list(dict.fromkeys(self.cleaned_data["configuration"]))
        if len(chosen) > MAX_SERIES:
            raise forms.ValidationError(
                f"{len(chosen)} configurations are chosen; a chart shows at most {MAX_SERIES}."
            )
        return chosen

"""What comes in through URLs and admin forms, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict

from dashboard.measurements.selectors import SORTS, RunFilter

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

"""The filters of the overview, in the URL."""

from __future__ import annotations

from collections.abc import Sequence

from django import forms
from django.http import QueryDict

from dashboard.models import Configuration

FACETS = ("hardware", "model", "backend")


class OverviewForm(forms.Form):
    """?hardware=…&model=…&backend=…; what does not exist is refused by name."""

    hardware = forms.ChoiceField(required=False)
    model = forms.ChoiceField(required=False)
    backend = forms.ChoiceField(required=False)

    def __init__(self, query: QueryDict, configurations: Sequence[Configuration]) -> None:
        super().__init__(query)
        for name in FACETS:
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)  # noqa: S101 - tells mypy what the class body says
            values = sorted({getattr(c, name) for c in configurations})
            field.choices = [("", "any"), *((v, v) for v in values)]
            field.error_messages["invalid_choice"] = (
                f"No run has the {name} “%(value)s”; choose one of those listed."
            )

    def admits(self, configuration: Configuration) -> bool:
        """Only after is_valid()."""
        return all(
            not self.cleaned_data[name] or getattr(configuration, name) == self.cleaned_data[name]
            for name in FACETS
        )

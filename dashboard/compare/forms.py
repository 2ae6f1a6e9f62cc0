"""Which runs to compare, in the URL."""

from __future__ import annotations

from collections.abc import Sequence

from django import forms
from django.http import QueryDict

from dashboard.compare.commits import Commit
from dashboard.templatetags.figures import commit as short

MAX_RUNS = 6


class CompareForm(forms.Form):
    """?run=3&run=9: the first run is what the others are compared with. The same run may stand twice."""

    def __init__(self, query: QueryDict) -> None:
        super().__init__(query)
        self._asked = [text for text in query.getlist("run") if text.strip()]

    def clean(self) -> dict[str, list[int]]:
        if len(self._asked) > MAX_RUNS:
            raise forms.ValidationError(
                f"{len(self._asked)} runs are chosen; a comparison takes at most {MAX_RUNS}."
            )
        for text in self._asked:
            if not (text.isascii() and text.isdecimal() and len(text) < 19):
                raise forms.ValidationError(f"“{text[:40]}” is no run; a run is the number in its address.")
        return {"runs": [int(text) for text in self._asked]}


class CommitsForm(forms.Form):
    """?base=SHA&head=SHA, both of those that were measured."""

    base = forms.ChoiceField(label="From")
    head = forms.ChoiceField(label="To")

    def __init__(self, query: QueryDict, known: Sequence[Commit]) -> None:
        super().__init__(query or None)
        choices = [
            (one.sha, f"{short(one.sha)} ({one.runs} run{'' if one.runs == 1 else 's'})") for one in known
        ]
        for name, start in (("base", 1), ("head", 0)):
            field = self.fields[name]
            assert isinstance(field, forms.ChoiceField)  # noqa: S101 - tells mypy what the class body says
            field.choices = choices
            field.initial = known[min(start, len(known) - 1)].sha if known else None
            field.error_messages["invalid_choice"] = (
                "No run was measured at “%(value)s”; choose one of the commits listed."
            )

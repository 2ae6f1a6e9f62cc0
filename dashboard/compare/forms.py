"""Which runs to compare, in the URL."""

from __future__ import annotations

from django import forms
from django.http import QueryDict

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

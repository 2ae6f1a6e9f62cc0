"""What the history is asked for in its URL, and the notes that are posted to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from django import forms
from django.http import QueryDict

from dashboard.history.series import MAX_SERIES
from dashboard.measurements.configurations import FACETS
from dashboard.measurements.metrics import METRICS
from dashboard.models import Annotation, Configuration

AXES = {"time": "time", "commit": "commit"}
_ZOOM = r"^[0-9A-Za-z:.+-]{1,64}$"


class HistoryForm(forms.Form):
    """?configuration=3&configuration=7&metric=tok_s&axis=time&from=2026-11-01T00:00:00Z&to=…

    `from` and `to` are the zoom: moments, or commits if the axis is one. The script applies them; the page's
    table and exports hold everything. The facets choose which configurations are listed.
    """

    metric = forms.ChoiceField(required=False, choices=[(k, m.title) for k, m in METRICS.items()])
    axis = forms.ChoiceField(required=False, choices=list(AXES.items()))
    configuration = forms.TypedMultipleChoiceField(
        required=False,
        coerce=int,
        error_messages={"invalid_choice": "There is no configuration %(value)s; choose from the table."},
    )

    def __init__(self, query: QueryDict, known: Sequence[Configuration]) -> None:
        super().__init__(query)
        for name in ("from", "to"):  # no names for attributes of a class
            self.fields[name] = forms.RegexField(
                _ZOOM,
                required=False,
                error_messages={"invalid": f"The zoom's “{name}” is no moment and no commit; remove it."},
            )
        self._choices("configuration", [str(c.pk) for c in known], [])
        for name in FACETS:
            self.fields[name] = forms.ChoiceField(required=False)
            values = sorted({getattr(c, name) for c in known})
            self._choices(name, [str(v) for v in values], [("", "any")])
            self.fields[name].error_messages["invalid_choice"] = (
                f"No configuration has the {name} “%(value)s”; choose one of those listed."
            )

    def _choices(self, name: str, values: list[str], first: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)  # noqa: S101 - tells mypy what the class body says
        field.choices = [*first, *((v, v) for v in values)]

    @property
    def facets(self) -> list[forms.BoundField]:
        return [self[name] for name in FACETS]

    def admits(self, configuration: Configuration) -> bool:
        """Whether the facets let it through. Only after is_valid()."""
        return all(
            not self.cleaned_data[name] or str(getattr(configuration, name)) == self.cleaned_data[name]
            for name in FACETS
        )

    def clean_metric(self) -> str:
        return self.cleaned_data["metric"] or "tok_s"

    def clean_axis(self) -> str:
        return self.cleaned_data["axis"] or "time"

    def clean_configuration(self) -> list[int]:
        chosen: list[int] = list(dict.fromkeys(self.cleaned_data["configuration"]))
        if len(chosen) > MAX_SERIES:
            raise forms.ValidationError(
                f"{len(chosen)} configurations are chosen; a chart shows at most {MAX_SERIES}."
            )
        return chosen


# Django's classes take type parameters only in the stubs.
if TYPE_CHECKING:
    _NoteModelForm = forms.ModelForm[Annotation]
else:
    _NoteModelForm = forms.ModelForm


class NoteForm(_NoteModelForm):
    """A note that a person types: when, about what, for which configuration."""

    at = forms.DateTimeField(
        label="When (UTC)",
        widget=forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M"),
        input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d"],
    )
    git_sha = forms.RegexField(
        r"^[0-9A-Za-z.+-]{0,64}$",
        required=False,
        label="Commit",
        error_messages={"invalid": "A commit is a git hash, or the beginning of one."},
    )
    text = forms.CharField(max_length=300, label="Note")

    class Meta:
        model = Annotation
        fields = ["text", "at", "git_sha", "configuration"]

    def __init__(self, *args: Any, chosen: Sequence[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        field = self.fields["configuration"]
        assert isinstance(field, forms.ModelChoiceField)  # noqa: S101
        field.queryset = (
            Configuration.objects.filter(pk__in=list(chosen)) if chosen else Configuration.objects.none()
        )
        field.empty_label = "every configuration"
        self.fields["at"].initial = datetime.now(UTC).replace(second=0, microsecond=0)

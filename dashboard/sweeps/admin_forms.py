"""The matrix of a sweep as fields that a person can fill in."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from dashboard.models import Sweep
from dashboard.sweeps.crontab import parse_crontab
from dashboard.sweeps.matrix import AXES, SAMPLING, sampling_dict, validate_matrix
from engine.backends import BACKENDS, WITH_SYNC
from engine.backends.base import SYNCS
from engine.errors import RequestError
from engine.sampling import SamplingParams

_SEPARATOR = re.compile(r"[,\s]+")
_MAY_BE_EMPTY = ("sync", "streams")
"""Left out of the matrix where nothing is chosen."""
_FIELD_OF_AXIS = {"model": "models", "backend": "backends"}


class NumbersField(forms.CharField):
    """Whole numbers separated by commas or spaces: "32, 256, 1024"."""

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        numbers = []
        for word in filter(None, _SEPARATOR.split(text.strip())):
            if not (word.isascii() and word.isdecimal()) or len(word) > 12:
                raise ValidationError(f"{word!r} is not a whole number.")
            numbers.append(int(word))
        return numbers

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list) else value

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.prepare_value(initial) != data)


class SamplingField(forms.CharField):
    """One sampling a line: "greedy", or "temperature=0.8 top_p=0.95 seed=1"."""

    widget = forms.Textarea(attrs={"rows": 3, "cols": 60})

    def to_python(self, value: Any) -> Any:
        text = super().to_python(value) or ""
        return [self._line(line.strip()) for line in text.splitlines() if line.strip()]

    def _line(self, line: str) -> dict[str, Any]:
        if line == "greedy":
            return {}
        found: dict[str, Any] = {}
        for word in line.split():
            name, equals, number = word.partition("=")
            try:
                if not equals or name not in SAMPLING:
                    raise ValueError
                found[name] = SAMPLING[name].kind(number)
            except ValueError:
                names = ", ".join(SAMPLING)
                raise ValidationError(
                    f"{word!r} is not NAME=NUMBER; names are {names}, and a line may say greedy."
                ) from None
        try:
            return sampling_dict(SamplingParams(**found))
        except RequestError as error:
            raise ValidationError(f"{line!r}: {error}.") from error

    def prepare_value(self, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        return "\n".join(" ".join(f"{k}={v}" for k, v in one.items()) or "greedy" for one in value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return bool(self.prepare_value(initial) != data)


# Django's classes take type parameters only in the stubs.
if TYPE_CHECKING:
    _SweepModelForm = forms.ModelForm[Sweep]
else:
    _SweepModelForm = forms.ModelForm


class SweepForm(_SweepModelForm):
    """A sweep with its matrix taken apart. `matrix()` puts it together, after is_valid()."""

    models = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 3, "cols": 60}),
        help_text="One name a line, as `python -m engine models` lists them, or as the workers call their own"
        " (/v1/models); random:NAME for random weights.",
    )
    backends = forms.MultipleChoiceField(
        choices=[(b, b) for b in BACKENDS], widget=forms.CheckboxSelectMultiple
    )
    devices = NumbersField(initial=[1], help_text="Numbers of devices, separated by commas.")
    sync = forms.MultipleChoiceField(
        label="Synchronisation",
        choices=[(s, s) for s in SYNCS],
        widget=forms.CheckboxSelectMultiple,
        required=False,
        help_text=f"How a phase knows that its input is there, on {' and '.join(WITH_SYNC)}. None chosen: as"
        " each worker does it by itself.",
    )
    streams = NumbersField(
        required=False,
        help_text="How many requests side by side, separated by commas; more than 1 on one device. Empty for"
        " one.",
    )
    context = NumbersField(help_text="Tokens in the prompt, separated by commas.")
    tokens = NumbersField(help_text="Tokens to generate, separated by commas; at least 2.")
    sampling = SamplingField(
        initial=[{}], help_text="One a line: greedy, or temperature=0.8 top_p=0.95 seed=1."
    )
    schedule_crontab = forms.CharField(
        label="Crontab (UTC)",
        required=False,
        help_text="Minute, hour, day of month, month, day of week: 30 2 * * * is every night at 02:30. "
        "Empty for none. A sweep still running when its time comes is not started twice.",
    )
    schedule_enabled = forms.BooleanField(label="Schedule is on", required=False, initial=True)

    class Meta:
        model = Sweep
        fields = ("name", "description", "repeats", "trace")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        sweep = self.instance
        if sweep.pk:
            for axis in AXES:
                if axis in sweep.matrix:
                    self.initial[_FIELD_OF_AXIS.get(axis, axis)] = sweep.matrix[axis]
            self.initial["models"] = "\n".join(sweep.matrix.get("model", []))
            self.initial["schedule_crontab"] = sweep.crontab
            self.initial["schedule_enabled"] = sweep.schedule.enabled if sweep.schedule else True

    def clean_models(self) -> list[str]:
        return [line.strip() for line in self.cleaned_data["models"].splitlines() if line.strip()]

    def clean_schedule_crontab(self) -> str:
        text: str = self.cleaned_data["schedule_crontab"].strip()
        if text:
            parse_crontab(text)
        return text

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if all(_FIELD_OF_AXIS.get(axis, axis) in cleaned for axis in AXES):
            matrix = self.matrix()
            validate_matrix(matrix)
            self.instance.matrix = matrix
        return cleaned

    def matrix(self) -> dict[str, Any]:
        matrix = {axis: self.cleaned_data[_FIELD_OF_AXIS.get(axis, axis)] for axis in AXES}
        return {axis: values for axis, values in matrix.items() if values or axis not in _MAY_BE_EMPTY}

"""What the roofline page asks, all of it in the URL; a field that the URL leaves out has its default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django import forms
from django.http import QueryDict

from engine.measuring.bandwidth import HARDWARE
from engine.measuring.roofline import MODELS
from engine.models.presets import preset_names

CUSTOM = "custom"
SHOWN = ("H100 SXM", "H200", "B200", "Rubin", "MI300X", "MI450")
"""The hardware that is ticked when the URL names none."""
DEFAULTS = {
    "model": "laneformer-2b",
    "context": "256",
    "devices": "8",
    "bandwidth": "stated",
    "mbu": "36",
    "kernels": "10",
    "launch_us": "4.5",
    "tokens": "50000",
}
MODEL_CHOICES = (
    ("Presets, by their shape", tuple((name, name) for name in preset_names())),
    ("By active parameters", tuple((row.name, row.name) for row in MODELS)),
    ("Your own", ((CUSTOM, "active parameters, as entered"),)),
)


def _number(low: float, high: float, *, label: str, required: bool = True, help_text: str = "") -> Any:
    return forms.FloatField(
        min_value=low, max_value=high, label=label, required=required, help_text=help_text,
        widget=forms.NumberInput(attrs={"step": "any"}),
    )  # fmt: skip


def _count(low: int, high: int, *, label: str, required: bool = True, help_text: str = "") -> Any:
    return forms.IntegerField(
        min_value=low, max_value=high, label=label, required=required, help_text=help_text
    )


class PlannerForm(forms.Form):
    """`measured` are the kinds of hardware whose read bandwidth was measured here, by name; `mbu` is the
    usual utilisation, 0 to 1, if one was measured."""

    model = forms.ChoiceField(choices=MODEL_CHOICES)
    active = _number(1e-4, 1e5, label="Active parameters, 10⁹", required=False)
    weight_bytes = _number(
        0.05, 8, label="Bytes a weight", required=False, help_text="Empty: the model’s own formats."
    )
    layers = _count(1, 10_000, label="Layers", required=False, help_text="Empty: the model’s own.")
    context = _count(0, 100_000_000, label="Context, tokens")
    kv_kb = _number(
        0,
        1e6,
        label="KV, kB a cached token",
        required=False,
        help_text="All layers. Empty: by a preset’s shape, none for the others.",
    )
    hardware = forms.MultipleChoiceField(widget=forms.CheckboxSelectMultiple)
    devices = _count(
        1, 4096, label="Devices", help_text="How many share the model; a measured machine is as it is."
    )
    bandwidth = forms.ChoiceField(
        choices=[
            ("stated", "as the makers state it"),
            ("read", "as a plain read reaches it, where known"),
            ("published", "as Kog computes with (about 80 %), where known"),
        ]
    )
    own_name = forms.CharField(max_length=60, required=False, label="Your GPU")
    own_tbs = _number(
        1e-3, 1e3, label="Its bandwidth, TB/s", required=False, help_text="A device’s; empty: no row."
    )
    mbu = _number(
        0.1,
        100,
        label="MBU, %",
        help_text="By itself the median of what was measured here; Kog reports 36 for 8 MI300X.",
    )
    kernels = _count(1, 10_000, label="Kernels a layer")
    launch_us = _number(0.001, 10_000, label="Cost of a launch, µs")
    tokens = _count(1, 10**12, label="Tokens to generate")

    def __init__(self, query: QueryDict, measured: Sequence[str], mbu: float | None = None) -> None:
        data = query.copy()
        usual = DEFAULTS if mbu is None else {**DEFAULTS, "mbu": f"{100 * mbu:.0f}"}
        for name, value in usual.items():
            data.setdefault(name, value)
        if "hardware" not in data:
            data.setlist("hardware", [*SHOWN, *measured])
        super().__init__(data)
        field = self.fields["hardware"]
        assert isinstance(field, forms.MultipleChoiceField)  # noqa: S101 - tells mypy what the class says
        field.choices = [
            *((row.name, row.name) for row in HARDWARE),
            *((name, f"{name}, as measured here") for name in measured),
        ]
        field.error_messages["invalid_choice"] = (
            "There is no hardware “%(value)s” here; tick one of those listed."
        )

    @property
    def model_fields(self) -> list[forms.BoundField]:
        return [self[n] for n in ("model", "active", "weight_bytes", "layers", "context", "kv_kb")]

    @property
    def speed_fields(self) -> list[forms.BoundField]:
        return [self[n] for n in ("mbu", "kernels", "launch_us", "tokens")]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("model") == CUSTOM:
            for name in ("active", "layers"):
                if name not in self.errors and cleaned.get(name) is None:
                    self.add_error(name, "Enter this for a model of your own.")
        elif cleaned.get("active") is not None:
            self.add_error("active", "Counts only for a model of your own; choose that, or leave it empty.")
        if cleaned.get("own_name") and cleaned.get("own_tbs") is None and "own_tbs" not in self.errors:
            self.add_error("own_tbs", "Say how many TB/s one device reads, or leave its name empty.")
        return cleaned

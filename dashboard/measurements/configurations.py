"""The one table of a configuration's fields: what must be equal before two speeds form one history.

The model's columns carry these names; its natural key, imports, exports, the API, filters, notes and
Prometheus labels derive from here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dashboard.sweeps.matrix import sampling_label
from engine.measuring.measurement import Measurement as Result

if TYPE_CHECKING:
    from dashboard.models import Configuration


@dataclass(frozen=True, slots=True)
class ConfigurationField:
    """`of` reads it from a measurement; lists of runs can be filtered by a `facet`."""

    name: str
    of: Callable[[Result], Any]
    facet: bool = False


def hardware_of(result: Result) -> str:
    """ "NVIDIA H200", "2 x NVIDIA H200", or the different names joined by " + "."""
    names = Counter(device.name for device in result.devices)
    return " + ".join(f"{n} x {name}" if n > 1 else name for name, n in names.items())


_UNPACKED = {"": "16-bit", "f16": "16-bit", "bf16": "16-bit", "f32": "32-bit"}


def weights_of(result: Result) -> str:
    """How wide the weights are, or the name of a packed format; a file that does not say has 16 bits."""
    told = result.model.weight_format
    return _UNPACKED.get(told, told)


FIELDS = (
    ConfigurationField("model", lambda r: r.model.name, facet=True),
    ConfigurationField("backend", lambda r: r.backend, facet=True),
    ConfigurationField("hardware", hardware_of, facet=True),
    ConfigurationField("devices", lambda r: r.settings.devices),
    ConfigurationField("parallelism", lambda r: r.settings.parallelism),
    ConfigurationField("delay", lambda r: r.settings.delay),
    ConfigurationField("sync", lambda r: r.settings.sync),
    ConfigurationField("context", lambda r: r.settings.context, facet=True),
    ConfigurationField("tokens", lambda r: r.settings.tokens),
    ConfigurationField("sampling", lambda r: sampling_label(r.settings.sampling), facet=True),
    ConfigurationField("weights", weights_of),
    ConfigurationField("cached_tokens", lambda r: r.settings.cached_tokens),
    ConfigurationField("streams", lambda r: r.settings.streams),
    ConfigurationField("cache", lambda r: r.settings.cache),
)
NATURAL_KEY = tuple(field.name for field in FIELDS)
FACETS = tuple(field.name for field in FIELDS if field.facet)


def configuration_of(result: Result) -> dict[str, Any]:
    """The natural key of the `Configuration` that `result` is a measurement of."""
    return {field.name: field.of(result) for field in FIELDS}


def values_of(configuration: Configuration) -> dict[str, Any]:
    """Its natural key, by name."""
    return {name: getattr(configuration, name) for name in NATURAL_KEY}

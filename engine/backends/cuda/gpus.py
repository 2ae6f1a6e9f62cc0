"""Which GPUs a machine has, which of them answer, and which reach each other's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

from engine.backends.cuda.driver import device_count, link_name, load
from engine.errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class Survey:
    """Of the GPUs that answer; `apart` has the pairs (from, to) where the first cannot reach the second."""

    names: tuple[str, ...]
    sms: int
    """Of the GPU that has the fewest."""
    apart: tuple[tuple[int, int], ...] = ()
    links: tuple[str, ...] = ()
    """What joins those that do: "NVLink", "PCIe"."""
    silent: tuple[str, ...] = ()
    """Why others that the driver lists do not answer."""

    def __str__(self) -> str:
        return "; ".join([self._reachable, *self.silent])

    @property
    def _reachable(self) -> str:
        names = ", ".join(f"{n} x {name}" if n > 1 else name for name, n in Counter(self.names).items())
        found = f"{names}, {self.sms} SMs"
        if len(self.names) == 1:
            return found
        if not self.apart:
            return f"{found} each; every GPU reaches every other over {' and '.join(self.links)}"
        first, second = self.apart[0]
        more = f" and {len(self.apart) - 1} more such pairs" if len(self.apart) > 1 else ""
        return (
            f"{found} each; GPU {first} cannot reach the memory of GPU {second}{more}:"
            " a model on several GPUs needs peer access between all of them"
        )


def survey() -> Survey:
    """Wakes every GPU for a moment: one that fell off its bus is still listed, and has a name and SMs.

    Raises BackendUnavailable without a driver or a GPU that answers.
    """
    driver = load()
    ask = partial(_query, driver)
    devices, silent = _awake(ask, device_count())
    if not devices:
        raise BackendUnavailable("; ".join(silent) or "the NVIDIA driver lists no GPU")
    sms = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    apart, links = [], set()
    for (a, first), (b, second) in permutations(devices.items(), 2):
        if not ask("cuDeviceCanAccessPeer", first, second):
            apart.append((a, b))
        else:
            links.add(link_name(ask, driver, first, second))
    return Survey(
        names=tuple(ask("cuDeviceGetName", 96, d).split(b"\0")[0].decode() for d in devices.values()),
        sms=min(int(ask("cuDeviceGetAttribute", sms, d)) for d in devices.values()),
        apart=tuple(apart),
        links=tuple(sorted(links)),
        silent=tuple(silent),
    )


def _awake(ask: Callable[..., Any], count: int) -> tuple[dict[int, Any], list[str]]:
    """Those that give a context, by ordinal, and what is said of the others."""
    found, silent = {}, []
    for ordinal in range(count):
        try:
            device = ask("cuDeviceGet", ordinal)
            ask("cuDevicePrimaryCtxRetain", device)
            ask("cuDevicePrimaryCtxRelease", device)
        except BackendUnavailable as refusal:
            silent.append(f"GPU {ordinal} does not answer ({refusal})")
        else:
            found[ordinal] = device
    return found, silent


def _query(driver: Any, call: str, *arguments: Any) -> Any:
    error, *answer = getattr(driver, call)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise BackendUnavailable(f"{call} failed: the NVIDIA driver says {error}")
    return answer[0] if answer else None

"""Which GPUs a machine has and which reach each other's memory, asked of the driver without waking any."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from engine.backends.cuda.driver import device_count, load
from engine.errors import BackendUnavailable


@dataclass(frozen=True, slots=True)
class Survey:
    """`apart` has the pairs (from, to) where the first cannot reach the second's memory."""

    names: tuple[str, ...]
    sms: int
    """Of the GPU that has the fewest."""
    apart: tuple[tuple[int, int], ...] = ()
    links: tuple[str, ...] = ()
    """What joins those that do: "NVLink", "PCIe"."""

    def __str__(self) -> str:
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
    """Raises BackendUnavailable without a driver or a GPU."""
    driver = load()
    count = device_count()
    if not count:
        raise BackendUnavailable("the NVIDIA driver lists no GPU")
    devices = [_asked(driver, "cuDeviceGet", ordinal) for ordinal in range(count)]
    sms = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
    atomics = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    apart, links = [], set()
    for (a, first), (b, second) in permutations(enumerate(devices), 2):
        if not _asked(driver, "cuDeviceCanAccessPeer", first, second):
            apart.append((a, b))
        else:
            links.add(
                "NVLink" if _asked(driver, "cuDeviceGetP2PAttribute", atomics, first, second) else "PCIe"
            )
    return Survey(
        names=tuple(_asked(driver, "cuDeviceGetName", 96, d).split(b"\0")[0].decode() for d in devices),
        sms=min(int(_asked(driver, "cuDeviceGetAttribute", sms, d)) for d in devices),
        apart=tuple(apart),
        links=tuple(sorted(links)),
    )


def _asked(driver: Any, call: str, *arguments: Any) -> Any:
    error, answer = getattr(driver, call)(*arguments)
    if error != driver.CUresult.CUDA_SUCCESS:
        raise BackendUnavailable(f"{call} failed: the NVIDIA driver says {error}")
    return answer

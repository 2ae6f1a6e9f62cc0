"""The CUDA driver, as much of it as one launch a request needs: memory, modules, launches, streams."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import BackendFailure, BackendUnavailable


def load() -> Any:
    """The driver's bindings, initialised. Raises BackendUnavailable if there is no driver or no GPU."""
    try:
        from cuda.bindings import driver
    except ImportError as missing:
        raise BackendUnavailable(f"the package cuda-bindings is not installed ({missing})") from missing
    try:
        (status,) = driver.cuInit(0)
    except RuntimeError as missing:  # the bindings find no libcuda
        raise BackendUnavailable("there is no NVIDIA driver on this machine") from missing
    if status != driver.CUresult.CUDA_SUCCESS:
        raise BackendUnavailable(f"the NVIDIA driver does not start: {_name(driver, status)}")
    return driver


def reachable_devices(count: int, *, virtual: bool = False) -> list[Device]:
    """The first `count` GPUs of this machine that answer: one that fell off its bus may still be listed.

    With `virtual` it is the first of them `count` times. Raises BackendUnavailable, with the reasons, if
    there are fewer.
    """
    if virtual:
        first = reachable_devices(1)[0].ordinal
        return [Device(first) for _ in range(count)]
    found: list[Device] = []
    silent: list[str] = []
    listed = device_count()
    for ordinal in range(listed):
        if len(found) == count:
            break
        try:
            found.append(Device(ordinal))
        except BackendFailure as error:
            silent.append(str(error))
    if len(found) < count:
        why = "".join(f"; {reason}" for reason in silent)
        asked = "1 GPU was" if count == 1 else f"{count} GPUs were"
        raise BackendUnavailable(
            f"{asked} asked for; of the {listed} of this machine {len(found)} answer{why}"
        )
    return found


def device_count() -> int:
    """How many GPUs the driver lists. Raises BackendUnavailable without one."""
    driver = load()
    error, count = driver.cuDeviceGetCount()
    if error != driver.CUresult.CUDA_SUCCESS:
        raise BackendUnavailable(f"the NVIDIA driver does not list its GPUs: {_name(driver, error)}")
    return int(count)


def link_name(ask: Callable[..., Any], driver: Any, first: Any, second: Any) -> str:
    """What joins two GPUs that reach each other: atomics that work across tell NVLink from PCIe.

    `ask` calls the driver's function of a name.
    """
    atomics = driver.CUdevice_P2PAttribute.CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
    return "NVLink" if ask("cuDeviceGetP2PAttribute", atomics, first, second) else "PCIe"


def _name(driver: Any, error: Any) -> str:
    _, text = driver.cuGetErrorName(error)
    return text.decode() if isinstance(text, bytes) else str(error)


class Device:
    """One GPU and its primary context.

    Every method raises BackendFailure when the driver refuses, but for `set_aside_l2` and `keep_in_l2`: a
    launch without them is slower and nothing else.
    """

    def __init__(self, ordinal: int = 0) -> None:
        self.driver = load()
        self.ordinal = ordinal
        self.count = int(self.call("cuDeviceGetCount"))
        """GPUs of this machine."""
        if ordinal >= self.count:
            raise BackendUnavailable(f"GPU {ordinal} was asked for; this machine has {self.count}, from 0")
        self._device = self.call("cuDeviceGet", ordinal)
        self._context = self.call("cuDevicePrimaryCtxRetain", self._device)
        self.activate()
        self._allocations: list[int] = []
        self._host_allocations: list[int] = []
        self._streams: list[Any] = []
        self._modules: list[Any] = []
        self.abandoned = False
        """True once a kernel on it does not end: to free anything would wait for that for ever."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls the driver; the result without its status, unpacked if it is one value."""
        error, *values = getattr(self.driver, name)(*arguments)
        if error != self.driver.CUresult.CUDA_SUCCESS:
            raise BackendFailure(f"{name} failed on GPU {self.ordinal}: {_name(self.driver, error)}")
        return values[0] if len(values) == 1 else values or None

    def activate(self) -> None:
        """Makes this device current on the calling thread."""
        self.call("cuCtxSetCurrent", self._context)

    def attribute(self, name: str) -> int:
        which = getattr(self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", which, self._device))

    @property
    def name(self) -> str:
        return str(self.call("cuDeviceGetName", 96, self._device).split(b"\0")[0].decode())

    @property
    def compute_capability(self) -> tuple[int, int]:
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    def free_bytes(self) -> int:
        """Memory that nobody has taken yet. The device must be current."""
        return int(self.call("cuMemGetInfo")[0])

    def total_bytes(self) -> int:
        """All its memory, whoever has taken it. The device must be current."""
        return int(self.call("cuMemGetInfo")[1])

    def allocate(self, size: int, *, zero: bool = False) -> int:
        """Device memory; freed by `close`."""
        pointer = int(self.call("cuMemAlloc", max(size, 16)))
        self._allocations.append(pointer)
        if zero:
            self.fill(pointer, size)
        return pointer

    def free(self, pointer: int) -> None:
        self._allocations.remove(pointer)
        self.call("cuMemFree", pointer)

    @contextmanager
    def scratch(self, size: int) -> Iterator[int]:
        """Device memory for as long as it is used."""
        pointer = self.allocate(size)
        try:
            yield pointer
        finally:
            self.free(pointer)

    def fill(self, pointer: int, size: int, byte: int = 0, stream: Any = 0) -> None:
        self.call("cuMemsetD8Async", pointer, byte, size, stream)

    def upload(self, pointer: int, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values)
        self.call("cuMemcpyHtoD", pointer, data.ctypes.data, data.nbytes)

    def upload_pinned(self, pointer: int, values: NDArray[np.uint8], stream: Any) -> None:
        """Of pinned memory, which must stay as it is until the stream has got there."""
        self.call("cuMemcpyHtoDAsync", pointer, values.ctypes.data, values.nbytes, stream)

    def download(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        out: NDArray[Any] = np.empty(shape, dtype)
        self.call("cuMemcpyDtoH", out.ctypes.data, pointer, out.nbytes)
        return out

    def put(self, values: NDArray[Any]) -> int:
        """Device memory that holds `values`."""
        pointer = self.allocate(values.nbytes)
        self.upload(pointer, values)
        return pointer

    def allocate_mapped(self, size: int) -> tuple[NDArray[np.uint8], int]:
        """Pinned host memory that the device writes to, and the device's address of it."""
        flags = self.driver.CU_MEMHOSTALLOC_DEVICEMAP | self.driver.CU_MEMHOSTALLOC_PORTABLE
        host = int(self.call("cuMemHostAlloc", size, flags))
        self._host_allocations.append(host)
        view: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(host))
        view[:] = 0
        return view, int(self.call("cuMemHostGetDevicePointer", host, 0))

    def free_mapped(self, view: NDArray[np.uint8]) -> None:
        """`view` must not be used after."""
        host = int(view.ctypes.data)
        self._host_allocations.remove(host)
        self.call("cuMemFreeHost", host)

    def reach(self, other: Device) -> None:
        """Lets kernels here use memory of `other`. Raises BackendUnavailable if nothing links them."""
        if other.ordinal == self.ordinal:
            return
        if not self.call("cuDeviceCanAccessPeer", self._device, other._device):
            raise BackendUnavailable(
                f"GPU {self.ordinal} cannot reach the memory of GPU {other.ordinal}; a model on several GPUs"
                " needs peer access between all of them, as NVLink gives it"
            )
        self.activate()
        (status,) = self.driver.cuCtxEnablePeerAccess(other._context, 0)
        result = self.driver.CUresult
        if status not in (result.CUDA_SUCCESS, result.CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED):
            raise BackendFailure(
                f"cuCtxEnablePeerAccess failed from GPU {self.ordinal} to GPU {other.ordinal}: "
                f"{_name(self.driver, status)}"
            )

    def link(self, other: Device) -> str:
        """What joins this GPU to `other`."""
        if other.ordinal == self.ordinal:
            return "one GPU"
        return link_name(self.call, self.driver, self._device, other._device)

    def stream(self) -> Any:
        """Does not wait for the default stream, nor that for it. It is there until `close`."""
        flags = self.driver.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._streams.append(self.call("cuStreamCreate", flags))
        return self._streams[-1]

    def set_aside_l2(self, size: int) -> None:
        """Sets `size` bytes of the L2 cache aside for `keep_in_l2`, or as many as the GPU allows.

        All models in the primary context share them. A refusal is passed over: under MPS the server's own
        settings say how many there are, and a window is of some use without any.
        """
        size = min(size, self.attribute("MAX_PERSISTING_L2_CACHE_SIZE"))
        if size == 0:
            return
        self.activate()
        with suppress(BackendFailure):
            self.call("cuCtxSetLimit", self.driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE, size)

    def keep_in_l2(self, stream: Any, address: int, size: int) -> None:
        """Has the L2 cache keep these `size` bytes, or the first of them that the GPU allows, for `stream`.

        It goes for what is launched on the stream from now on, in place of what the stream kept before. A
        refusal is passed over.
        """
        size = min(size, self._most_kept_bytes)
        if size == 0:
            return
        driver = self.driver
        window, value = driver.CUaccessPolicyWindow(), driver.CUstreamAttrValue()
        window.base_ptr, window.num_bytes, window.hitRatio = address, size, 1.0
        window.hitProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_PERSISTING
        window.missProp = driver.CUaccessProperty.CU_ACCESS_PROPERTY_NORMAL
        value.accessPolicyWindow = window
        which = driver.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        with suppress(BackendFailure):
            self.call("cuStreamSetAttribute", stream, which, value)

    @cached_property
    def _most_kept_bytes(self) -> int:
        """The most bytes that `keep_in_l2` keeps; 0 where no L2 can be set aside for them, as with MIG."""
        if not self.attribute("MAX_PERSISTING_L2_CACHE_SIZE"):
            return 0
        return self.attribute("MAX_ACCESS_POLICY_WINDOW_SIZE")

    @contextmanager
    def event(self) -> Iterator[Any]:
        """A moment on a stream, for as long as it is used."""
        event = self.call("cuEventCreate", 0)
        try:
            yield event
        finally:
            self.call("cuEventDestroy", event)

    def synchronise(self) -> None:
        self.call("cuCtxSynchronize")

    def module(self, image: bytes, kernels: Mapping[str, int]) -> dict[str, Any]:
        """The named kernels of a cubin, each allowed so many bytes of dynamic shared memory.

        They are there until `close`.
        """
        module = self.call("cuModuleLoadData", image)
        self._modules.append(module)
        found = {}
        attribute = self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for name, shared in kernels.items():
            found[name] = self.call("cuModuleGetFunction", module, name.encode())
            self.call("cuFuncLoad", found[name])  # now: later it would wait for whatever runs by then
            if shared:
                self.call("cuFuncSetAttribute", found[name], attribute, shared)
        return found

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int],
        threads: int,
        shared: int,
        arguments: Any,
        *,
        stream: Any = 0,
        all_resident: bool = False,
    ) -> None:
        """`arguments` are ctypes values; `all_resident` refuses a grid that the device cannot hold."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        name = "cuLaunchCooperativeKernel" if all_resident else "cuLaunchKernel"
        extra = () if all_resident else (0,)
        self.call(
            name,
            kernel,
            grid[0],
            grid[1],
            1,
            threads,
            1,
            1,
            shared,
            stream,
            ctypes.addressof(pointers),
            *extra,
        )

    def close(self) -> None:
        """Gives back all that it made; after a fault, when the driver refuses everything, nothing."""
        if self.abandoned:
            return
        self.driver.cuCtxSetCurrent(self._context)
        kept: tuple[tuple[str, list[Any]], ...] = (
            ("cuStreamDestroy", self._streams),
            ("cuMemFree", self._allocations),
            ("cuMemFreeHost", self._host_allocations),
            ("cuModuleUnload", self._modules),
        )
        for name, held in kept:
            for each in held:
                getattr(self.driver, name)(each)
            held.clear()

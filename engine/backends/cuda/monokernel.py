"""The monokernel of a model: what specialises it, and its machine code on each GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

from engine.backends.base import Loaded
from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.constants import Layout, make_layout
from engine.backends.cuda.driver import Device
from engine.backends.cuda.model_header import header
from engine.backends.cuda.options import Options, parse_options
from engine.backends.cuda.phases import plan_of
from engine.backends.cuda.room import fit_copy
from engine.backends.cuda.shared_launches import rows_for
from engine.backends.cuda.storages import choose_storages, shard_weights
from engine.backends.cuda.tape import validate
from engine.progress import OnProgress, Progress

MONOKERNEL = "monokernel.cu"


def kernel_headers(
    model: Loaded,
    devices: int,
    sms: int,
    options: Mapping[str, Any],
    *,
    profile: bool = True,
    free: int | None = None,
) -> tuple[str, ...]:
    """What specialises MONOKERNEL for a model on GPUs of `sms` SMs: without and with filters.

    Then, with `profile`, the same with the profile. `free` is the bytes that a GPU has for models and kept
    sequences; without it there is room for all that is wished for. Needs no GPU. Raises as opening the
    backend does.
    """
    chosen = parse_options(options)
    layout = layout_for(model, devices, sms, chosen)
    if free is not None:
        of_each = free // devices if chosen.virtual else free
        layout = fit_copy(layout, (of_each - chosen.cache_bytes // devices,))
    return tuple(
        _header(layout, profiled, filters)
        for profiled in ((False, True) if profile else (False,))
        for filters in (False, True)
    )


def layout_for(model: Loaded, devices: int, sms: int, chosen: Options) -> Layout:
    """How the model lies on each of so many GPUs, if it has room for all that is wished for."""
    sharding = shard_weights(model.weights, devices)
    kept = choose_storages(model.weights, sharding)
    cores = sms // devices if chosen.virtual else sms
    made = plan_of(sharding, cores, kept.storages)
    layout = make_layout(made, kept.half, chosen.tuning, chosen.context, sharding)
    validate(made, layout.slot_units)
    return replace(layout, rows=rows_for(layout, chosen.rows))


def _header(layout: Layout, profile: bool, filters: bool) -> str:
    tuned = replace(layout, tuning=replace(layout.tuning, profile=profile))
    return header(tuned, filters=filters)


class Kernels:
    """The monokernels of `layout`, compiled and loaded on each of `devices` when they are first wanted."""

    def __init__(self, devices: Sequence[Device], layout: Layout, progress: OnProgress) -> None:
        self._devices, self._layout, self._progress = devices, layout, progress
        self._loaded: dict[tuple[int, bool, bool], Any] = {}

    def get(self, rank: int, profile: bool, filters: bool) -> Any:
        """The function on the GPU of that rank, with or without the profile and the filters."""
        which = rank, profile, filters
        if which not in self._loaded:
            header = _header(self._layout, profile, filters)
            compiled = compile_kernel(MONOKERNEL, header, progress=self._progress)
            self._loaded[which] = self._load(self._devices[rank], compiled.image)
        return self._loaded[which]

    def of_several(self, layouts: Mapping[int, Layout], *, profile: bool) -> dict[int, list[Any]]:
        """Those of several requests on each GPU, by how many they are for: compiled side by side."""
        headers = [_header(layout, profile, True) for layout in layouts.values()]
        self._progress(Progress(0, len(headers), "kernels", "compiling the kernels of several requests"))
        with ThreadPoolExecutor(len(headers)) as pool:
            images = [compiled.image for compiled in pool.map(partial(compile_kernel, MONOKERNEL), headers)]
        return {
            size: [self._load(device, image) for device in self._devices]
            for size, image in zip(layouts, images, strict=True)
        }

    def _load(self, device: Device, image: bytes) -> Any:
        device.activate()
        return device.module(image, {"monokernel": self._layout.shared_bytes})["monokernel"]

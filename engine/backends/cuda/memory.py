"""A model in a GPU's memory: its tapes, its embedding, its norms, its cache and its mailboxes."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.constants import Layout, norms_less_one, rotations
from engine.backends.cuda.contract import Control, FoldJob, PackJob, PackTensor, UnitJob, UnitTensor
from engine.backends.cuda.driver import Device
from engine.backends.cuda.expert_region import EXPERT_MATRICES, ExpertRegion, expert_tensors
from engine.backends.cuda.folded_router import (
    FOLDED_TOGETHER,
    folded_layer_bytes,
    folded_offset,
    folds_router,
    router_names,
)
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.tape import (
    CHUNK_COLUMNS,
    HALF_BYTES,
    Matrix,
    Plan,
    columns,
    part_tiles,
    parts,
    row_sources,
    tape_matrices,
    tensors,
)
from engine.backends.cuda.unpacked import (
    copies_experts,
    copy_offsets,
    copy_steps,
    experts_for_tiles,
    sixteen_bits,
    size_with_copies,
    tile_offsets,
)
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.rope import Rope, rotation_table
from engine.models.storage import FP8_BLOCK_SIDE, Storage
from engine.models.weights import DType, RandomWeights, Weights, cast_tensor, packed_of
from engine.progress import BYTES, OnProgress, Progress

_THREADS = 256


@dataclass(frozen=True)
class Memory:
    """Device addresses; monokernel's Params has the shapes."""

    tape: int
    tape_bytes: int
    tape_offset: int
    tape_tiles: int
    shares: int
    embed: int
    norms: int
    rotation: int
    kv: int
    kv_bytes: int
    mail: int
    mail_bytes: int
    candidates: int
    filters: int
    stream: int
    outputs: int
    queries: int
    operand_hidden: int
    operand_heads: int
    operand_ffn: int
    control: int
    stop_flag: int
    cleared: int
    """Where what every launch finds cleared begins: filters, control and stop flag."""
    cleared_bytes: int


def tape_size(layout: Layout) -> int:
    """Bytes of all tapes, of the experts behind them, and of the copies behind those."""
    plan = layout.plan
    return size_with_copies(plan) if layout.has_copy else int(plan.tape_offsets()[-1]) + layout.experts.size


def tape_table(layout: Layout) -> NDArray[np.uint64]:
    """Where each tape begins, then the experts, then those in 16 bits if prompts go by tiles: [cores + 2]."""
    for_tiles = experts_for_tiles(layout.plan)[0] if layout.prefills_by_tiles else 0
    return np.append(layout.plan.tape_offsets(), np.uint64(for_tiles))


def load_model(
    device: Device, layout: Layout, weights: Weights, progress: OnProgress, rank: int = 0
) -> Memory:
    """Packs or makes this GPU's part of the weights and reserves everything that a launch needs."""
    config, plan = layout.config, layout.plan
    loader = _Loader(device, layout, weights, progress, rank)
    norms = loader.vectors()
    tape, tape_bytes = loader.tape(norms)
    prefill = prefill_bytes(layout)
    kv_bytes, mail_bytes = layout.kv_halves * 2, layout.mail_words * 4
    shares = share_table(plan)
    sizes = (layout.filter_bytes, ctypes.sizeof(Control), 4)
    apart = (-(-size // 256) * 256 for size in sizes)  # as allocations of their own lie
    filters, control, stop_flag, cleared_bytes = accumulate(apart, initial=0)
    cleared = device.allocate(cleared_bytes, zero=True)
    return Memory(
        tape=tape,
        tape_bytes=tape_bytes,
        tape_offset=device.put(tape_table(layout)),
        tape_tiles=device.put(tile_table(layout)),
        shares=device.put(shares),
        embed=loader.rows(["embed"]),
        norms=norms,
        rotation=device.put(np.concatenate([turns(rope, layout) for rope in rotations(config)])),
        kv=device.allocate(kv_bytes, zero=True),
        kv_bytes=kv_bytes,
        mail=device.allocate(mail_bytes, zero=True),
        mail_bytes=mail_bytes,
        candidates=device.allocate(layout.candidates_bytes, zero=True),
        filters=cleared + filters,
        stream=device.allocate(prefill["stream"]),
        outputs=device.allocate(prefill["outputs"]),
        queries=device.allocate(prefill["queries"]),
        operand_hidden=device.allocate(prefill["operand_hidden"], zero=True),
        operand_heads=device.allocate(prefill["operand_heads"], zero=True),
        operand_ffn=device.allocate(prefill["operand_ffn"], zero=True),
        control=cleared + control,
        stop_flag=cleared + stop_flag,
        cleared=cleared,
        cleared_bytes=cleared_bytes,
    )


def turns(rope: Rope | None, layout: Layout) -> NDArray[np.float32]:
    """Cosines and sines of one kind of rotation: [capacity, head_dim / 2, 2]."""
    if rope is None:
        still = np.zeros((layout.capacity, layout.config.head_dim // 2, 2), np.float32)
        still[..., 0] = 1.0
        return still
    return np.stack(rotation_table(rope, layout.config.head_dim, layout.capacity), axis=-1)


def vector_names(config: ModelConfig) -> list[str]:
    """Everything that is read as vectors, in the order of `Params.norms`."""
    routers = (f"layers.{i}.router" for i in range(config.layers) if config.experts)
    return [
        *norm_names(config),
        *routers,
        *head_vector_names(config),
        *expert_bias_names(config),
        *post_norm_names(config),
    ]


def vector(weights: Weights, name: str, dtype: DType, sharding: Sharding) -> NDArray[Any]:
    """A row or a vector as the kernels read it, of all GPUs."""
    if _lies_less_one(weights, name):
        return cast_tensor(weights.get(name) - np.float32(1), dtype)
    return sharding.of_all(name, weights.get(name, dtype))


def _lies_less_one(weights: Weights, name: str) -> bool:
    return norms_less_one(weights.config) and name.endswith("norm")


def norm_names(config: ModelConfig) -> Iterator[str]:
    for i in range(config.layers):
        yield f"layers.{i}.attn_norm"
        yield f"layers.{i}.ffn_norm"
    yield "norm"


def post_norm_names(config: ModelConfig) -> Iterator[str]:
    """Norms of what modules add to the residual stream, as decode.cuh expects them."""
    for i in range(config.layers if config.post_norms else 0):
        yield f"layers.{i}.attn_post_norm"
        yield f"layers.{i}.ffn_post_norm"


def head_vector_names(config: ModelConfig) -> Iterator[str]:
    """What a family does to heads, layer by layer, as heads.cuh expects it."""
    names: list[str] = []
    if config.qkv_bias:
        names += ["bq", "bk", "bv"]
    if config.qk_norm:
        names += ["q_norm", "k_norm"]
    if config.sinks:
        names += ["sinks"]
    if config.out_bias:
        names += ["bo"]
    return (f"layers.{i}.{name}" for i in range(config.layers) for name in names)


def expert_bias_names(config: ModelConfig) -> Iterator[str]:
    """Biases of routers and experts, layer by layer, as expert_biases.cuh expects them."""
    if config.experts is None or not config.experts.biased:
        return
    for i in range(config.layers):
        yield f"layers.{i}.router_bias"
        for expert in range(config.experts.count):
            yield from (f"layers.{i}.experts.{expert}.{name}" for name in ("b_gate", "b_up", "b_down"))


def share_table(plan: Plan) -> NDArray[np.int32]:
    """(first, tiles) of every share as `Share` has them: [cores, matrices, 2]."""
    return np.array([[(s.first, s.tiles) for s in core] for core in plan.shares], np.int32)


def tile_shares(experts: ExpertRegion, matrix: Matrix) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """The tiles of one expert as if each were a core's share: (first, 1), and where they lie."""
    tiles = np.arange(part_tiles(experts.one, matrix))
    shares = np.stack([tiles, np.ones_like(tiles)], axis=1).astype(np.int32)
    return shares, (tiles * experts.tile_bytes(matrix)).astype(np.uint64)


def tile_table(layout: Layout) -> NDArray[np.uint32]:
    """Where each tile of a layer's matrices lies in 16 bits, as tile_producer.cuh takes it: [tiles, 4].

    In halves of units: its first chunk in the first layer from the begin of all tapes, the distance from
    layer to layer and from chunk to chunk; and how many tiles from it on lie side by side. Of matrices that
    are dealt out in halves of tiles the same of each core's share. Of no use to models whose prompts all go
    by shares.
    """
    if not layout.prefills_by_tiles:
        return np.zeros((1, 4), np.uint32)
    plan = sixteen_bits(layout.plan)
    begins = tile_offsets(layout.plan)
    tables = []
    for matrix in tape_matrices(plan.config):
        table = np.zeros((parts(plan.config, matrix) * part_tiles(plan.config, matrix), 4), np.uint32)
        for core in range(plan.cores):
            start = int(begins[core]) + plan.matrix_offset(core, 0, matrix)
            layer = plan.layer_bytes(core) // HALF_BYTES
            for group in plan.groups(core, matrix):
                first = (start + group.offset) // HALF_BYTES
                if group.halves:
                    table[core] = first, layer, group.halves, 1
                    continue
                for i in range(group.tiles):
                    table[group.first + i] = first + 2 * i, layer, 2 * group.tiles, group.tiles - i
        tables.append(table)
    return np.concatenate(tables)


class _Loader:
    def __init__(
        self, device: Device, layout: Layout, weights: Weights, progress: OnProgress, rank: int
    ) -> None:
        self._device, self._layout, self._weights, self._progress = device, layout, weights, progress
        self._rank = rank
        image = compile_kernel("pack.cu", "").image
        self._kernels = device.module(image, {"pack_matrix": 0, "fill_random": 0, "fold_router": 0})
        if layout.plan.is_packed:
            units = compile_kernel("pack_units.cu", "").image
            names = ("pack_units", "unpack_units", "fold_router_units")
            self._kernels |= device.module(units, dict.fromkeys(names, 0))
        self._shapes = dict(tensor_shapes(layout.sharding.whole))

    def vectors(self) -> int:
        """All that is read as vectors, and room for the folded router behind it."""
        config = self._layout.config
        return self.rows(vector_names(config), config.layers * folded_layer_bytes(config))

    def rows(self, names: list[str], behind: int = 0) -> int:
        """Tensors one after the other as they are; with room for so many bytes at `folded_offset`."""
        counts = [self._count(name) for name in names]
        pointer = self._device.allocate(folded_offset(sum(counts)) + behind, zero=True)
        at = pointer
        for name, count in zip(names, counts, strict=True):
            if isinstance(self._weights, RandomWeights) and not self._is_changed(name):
                key, scale, offset = self._weights.recipe(name)
                arguments = (
                    ctypes.c_uint64(at),
                    ctypes.c_uint64(math.prod(self._shapes[name])),
                    ctypes.c_uint32(key),
                    ctypes.c_float(scale),
                    ctypes.c_float(offset),
                    ctypes.c_uint32(self._layout.weights == "bf16"),
                )
                self._device.launch(self._kernels["fill_random"], (1024, 1), _THREADS, 0, arguments)
            else:
                self._device.upload(
                    at, vector(self._weights, name, self._layout.weights, self._layout.sharding)
                )
            at += count * 2
        self._device.synchronise()
        return pointer

    def _count(self, name: str) -> int:
        """Elements of a vector, of all GPUs."""
        return self._layout.sharding.length_of_all(name, math.prod(self._shapes[name]))

    def _is_changed(self, name: str) -> bool:
        """Whether a vector lies otherwise than the model has it."""
        return _lies_less_one(self._weights, name) or self._layout.sharding.copies(name) > 1

    def tape(self, norms: int) -> tuple[int, int]:
        """All cores' tapes in one buffer, all experts behind them, then copies; its address and size.

        And beside it the routers as the heads see them, behind the vectors at `norms`.
        """
        self._norms = norms
        plan, experts = self._layout.plan, self._layout.experts
        offsets, total = plan.tape_offsets(), tape_size(self._layout)
        tape = self._device.allocate(total)
        done = Progress(0, total, BYTES, "packing weights")
        done = self._fill(tape, plan, offsets, plan.steps(), done)
        done = self._pack_experts(tape + int(offsets[-1]), experts, done)
        if self._layout.has_copy:
            done = self._fill(tape, sixteen_bits(plan), copy_offsets(plan), copy_steps(plan), done)
            if copies_experts(plan):
                begin, copy = experts_for_tiles(plan)
                self._pack_experts(tape + begin, copy, done)
        return tape, total

    def _fill(
        self,
        tape: int,
        plan: Plan,
        offsets: np.ndarray,
        steps: Iterable[tuple[int, Matrix]],
        progress: Progress,
    ) -> Progress:
        """Matrices at where `plan` and `offsets` of its cores have them; how far it is by then."""
        shares = share_table(plan)
        for layer, matrix in steps:
            begins = offsets[:-1] + plan.matrix_offsets(layer, matrix)
            self._pack_tape(tape, plan, shares[:, matrix], begins, layer, matrix)
            more = sum(plan.share_sizes(layer, matrix))
            progress = structs.replace(progress, done=progress.done + more)
            self._progress(progress)
        return progress

    def _pack_tape(
        self,
        tape: int,
        plan: Plan,
        shares: NDArray[np.int32],
        begins: NDArray[np.uint64],
        layer: int,
        matrix: Matrix,
    ) -> None:
        """A matrix of which each core's share begins so many bytes behind `tape`."""
        config = self._layout.config
        width, sources = columns(config, matrix), row_sources(config, matrix)
        target = _Target(self._device, width, sources, shares, begins, plan.halves(matrix))
        kept, wanted = self._layout.plan.storage(layer, matrix), plan.storage(layer, matrix)
        folds = folds_router(config) and matrix is Matrix.ATTN_OUT and plan is self._layout.plan
        fold = self._fold_job(layer) if folds else None
        self._pack(target, tape, tensors(config, layer, matrix), kept, unpacked=kept is not wanted, fold=fold)
        target.free()

    @cached_property
    def _places_of_vectors(self) -> tuple[dict[str, int], int]:
        """Where each lies by its name, and the folded router behind them."""
        names = vector_names(self._layout.config)
        sizes = [2 * self._count(name) for name in names]
        places = dict(zip(names, accumulate(sizes, initial=self._norms), strict=False))  # but for their end
        return places, self._norms + folded_offset(sum(sizes) // 2)

    def _fold_job(self, layer: int) -> FoldJob:
        """A layer's router through what attention's output is packed from."""
        config, (places, folded) = self._layout.config, self._places_of_vectors
        router, norm = (places[name] for name in router_names(layer))
        return FoldJob(
            router=router,
            norm=norm,
            to=folded + layer * folded_layer_bytes(config),
            experts=self._layout.experts.count,
            hidden=config.hidden,
            columns=config.q_dim,
            bf16=self._layout.weights == "bf16",
        )

    def _pack_experts(self, address: int, experts: ExpertRegion, progress: Progress) -> Progress:
        """A tile of an expert is packed as a core's share is. How far it is by then."""
        if not experts.count:
            return progress
        targets = {}
        for matrix in EXPERT_MATRICES:
            targets[matrix] = _Target(
                self._device,
                columns(experts.one, matrix),
                experts.sources(matrix),
                *tile_shares(experts, matrix),
            )
        for layer, expert, matrix in experts.matrices():
            names = expert_tensors(self._layout.config, layer, expert, matrix)
            at = address + experts.offset(layer, expert, matrix)
            kept, wanted = self._layout.experts.storage(matrix), experts.storage(matrix)
            self._pack(targets[matrix], at, names, kept, unpacked=kept is not wanted)
            progress = structs.replace(progress, done=progress.done + experts.matrix_bytes(matrix))
            if expert == experts.count - 1:
                self._progress(progress)
        for target in targets.values():
            target.free()
        return progress

    def _pack(
        self,
        target: _Target,
        address: int,
        names: Sequence[str],
        storage: Storage = Storage.F16,
        *,
        unpacked: bool = False,
        fold: FoldJob | None = None,
    ) -> None:
        """Fills one matrix of the tapes, or of an expert; a packed one as it is, or `unpacked`.

        With `fold` it is attention's output projection, through which the router is folded.
        """
        device, stored = self._device, list[int]()
        grid, bf16 = (target.width, target.cores), self._layout.weights == "bf16"
        if storage.is_packed:
            units = UnitJob(**target.where, tape=address, bf16=bf16, storage=storage)
            for i, name in enumerate(names):
                units.tensors[i] = self._unit_tensor(name, units.columns, stored)
            kernel = self._kernels["unpack_units" if unpacked else "pack_units"]
            device.launch(kernel, grid, _THREADS, 0, (units,))
            if fold is not None:
                kernel = self._kernels["fold_router_units"]
                device.launch(kernel, _fold_grid(fold), _THREADS, 0, (units, fold))
        else:
            job = PackJob(**target.where, halves=target.halves, tape=address, bf16=bf16)
            for i, name in enumerate(names):
                job.tensors[i] = self._pack_tensor(name, job.columns, stored)
            device.launch(self._kernels["pack_matrix"], grid, _THREADS, 0, (job,))
            if fold is not None:
                device.launch(self._kernels["fold_router"], _fold_grid(fold), _THREADS, 0, (job, fold))
        if stored:
            device.synchronise()
        for pointer in stored:
            device.free(pointer)

    def _pack_tensor(self, name: str, width: int, stored: list[int]) -> PackTensor:
        if isinstance(self._weights, RandomWeights) and not self._weights.storage(name).is_packed:
            key, scale, _ = self._weights.recipe(name)
            region = self._layout.sharding.region(name, self._rank, width)
            return PackTensor(0, *astuple(region), key, scale)
        values = self._weights.get(name, self._layout.weights)
        stored.append(self._device.put(self._layout.sharding.slice(name, self._rank, values)))
        return PackTensor(stored[-1])

    def _unit_tensor(self, name: str, width: int, stored: list[int]) -> UnitTensor:
        sharding = self._layout.sharding
        if isinstance(self._weights, RandomWeights):
            key, _, _ = self._weights.recipe(name)
            region = sharding.region(name, self._rank, width)
            return UnitTensor(0, 0, *astuple(region), key, self._weights.packed_scale(name))
        packed = packed_of(self._weights, name)
        stored.append(self._device.put(sharding.slice_packed(name, self._rank, packed)))
        if packed.scales is None:
            return UnitTensor(stored[-1])
        of_rows = np.repeat(packed.scales, FP8_BLOCK_SIDE, axis=-2)[..., : packed.rows.shape[-2], :]
        scales = sharding.slice(name, self._rank, of_rows, columns=FP8_BLOCK_SIDE)
        stored.append(self._device.put(scales))
        return UnitTensor(*stored[-2:])


def _fold_grid(fold: FoldJob) -> tuple[int, int]:
    """Blocks of columns, and of experts."""
    return -(-fold.columns // _THREADS), -(-fold.experts // FOLDED_TOGETHER)


class _Target:
    """Where the rows of a matrix go: what the packers are told of all matrices of a shape."""

    def __init__(
        self,
        device: Device,
        width: int,
        sources: NDArray[np.int32],
        shares: NDArray[np.int32],
        offsets: NDArray[np.uint64],
        halves: int = 0,
    ) -> None:
        self._device = device
        self.halves = halves
        self.cores = len(shares)
        pieces = int(shares[:, 1].max()) * -(-width // CHUNK_COLUMNS) * 32
        self.width = min(32, -(-pieces // _THREADS))
        """Blocks a core, or tile: each thread fills what one lane takes of a unit."""
        self.where = {
            "sources": device.put(sources),
            "shares": device.put(shares),
            "offsets": device.put(offsets),
            "columns": width,
        }

    def free(self) -> None:
        self._device.synchronise()
        for name in ("sources", "shares", "offsets"):
            self._device.free(self.where[name])

"""One launch of the monokernel on a CPU, in emulation: for very small models."""

from __future__ import annotations

import ctypes
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.backends.cuda.cache_content import keys_and_values
from engine.backends.cuda.constants import Tuning, make_layout, rotations
from engine.backends.cuda.contract import PEER_POINTERS, TOKEN_ID_BITS, Control, Params, Status
from engine.backends.cuda.expert_region import ExpertRegion, pack_experts
from engine.backends.cuda.folded_router import fold_router, folded_offset, folds_router
from engine.backends.cuda.memory import (
    share_table,
    tape_table,
    tile_table,
    turns,
    vector,
    vector_names,
)
from engine.backends.cuda.model_header import header
from engine.backends.cuda.params import biases_of, sampling_of
from engine.backends.cuda.phases import has_halves
from engine.backends.cuda.prefill_buffers import prefill_bytes
from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.storages import choose_storages, shard_weights
from engine.backends.cuda.tape import Plan, pack_core, plan
from engine.backends.cuda.unpacked import copies_experts, copy_offsets, experts_for_tiles, sixteen_bits
from engine.kv_cache import KeysAndValues
from engine.models.config import ModelConfig, is_matrix
from engine.models.storage import FP8_BLOCK_SIDE, Packed, Storage
from engine.models.weights import DType, Weights, packed_of, storage_of
from engine.sampling import SamplingParams
from tests.kernels.cuda.emulation.build import build_library
from tests.kernels.cuda.emulation.sources import write_sources

_ALIGNMENT = 1024


class PartOf:
    """What one GPU holds of the matrices of a model's tapes."""

    def __init__(self, weights: Weights, sharding: Sharding, rank: int) -> None:
        self.config, self.native = sharding.part, weights.native
        self._weights, self._sharding, self._rank = weights, sharding, rank

    def get(self, name: str, dtype: DType = "f32") -> NDArray[Any]:
        values = self._weights.get(name, dtype)
        return self._sharding.slice(name, self._rank, values) if is_matrix(name) else values

    def storage(self, name: str) -> Storage:
        return storage_of(self._weights, name)

    def packed(self, name: str) -> Packed:
        whole = packed_of(self._weights, name)
        rows = self._sharding.slice_packed(name, self._rank, whole)
        return Packed(whole.storage, rows, self._scales(name, whole.scales))

    def _scales(self, name: str, of_whole: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        """Of parts that are cut between blocks."""
        if of_whole is None:
            return None
        side = FP8_BLOCK_SIDE
        return self._sharding.slice(name, self._rank, of_whole, rows=side, columns=side)


class EmulatedGpu:
    """A model in the memory of a GPU of `cores` SMs. Raises FileNotFoundError if there is no C++ compiler."""

    def __init__(
        self,
        folder: Path,
        config: ModelConfig,
        weights: Weights,
        cores: int,
        tuning: Tuning | None = None,
        *,
        requests: int = 1,
        filters: bool = False,
        ranks: int = 1,
        rank: int = 0,
        equal: bool = False,
    ) -> None:
        """With `ranks` it is one of so many, which launch together (ranks.py); `equal` as in tape.plan."""
        self._config = config
        sharding = shard_weights(weights, ranks)
        self.chosen = choose_storages(weights, sharding)
        halves = has_halves(sharding, self.chosen.storages)
        self._plan = plan(sharding.part, cores, self.chosen.storages, equal=equal, halves=halves)
        tuned = tuning or Tuning()
        if tuned.slots_in_flight is None:  # models so small would ask for one slot at a time, always
            quiet = 2 if tuned.quiet_slots is None else tuned.quiet_slots
            tuned = replace(tuned, slots_in_flight=2, quiet_slots=quiet)
        self.layout = make_layout(self._plan, self.chosen.half, tuned, sharding=sharding, requests=requests)
        self.library = ctypes.CDLL(str(_build(folder, header(self.layout, filters=filters))))
        self._held: list[Any] = []
        self._rank = rank
        self._cache = self.put(np.full(self.layout.kv_halves, 0xFFFF, np.uint16))
        self.memory = self._load(weights)
        self._serial = 1

    @property
    def has_copy(self) -> bool:
        return self.layout.has_copy

    def generate(
        self, tokens: list[int], new: int, *, prefilled: int, first: int = 0, tiles_from: int = 1
    ) -> list[int]:
        """Greedy. Tokens from `first` to `prefilled` are prefilled; the cache has what was before.

        By tiles where `tiles_from` or more are left.
        """
        return self._launch(tokens, new, prefilled, first, tiles_from)

    def logits(
        self,
        tokens: list[int],
        *,
        prefilled: int = 0,
        first: int = 0,
        tiles_from: int = 1,
        last_along: bool = True,
    ) -> NDArray[np.float32]:
        """After each of `tokens` that goes through decode: [len(tokens) - prefilled, vocab]."""
        scored = len(tokens) - prefilled
        kept = self.put(np.full((scored, self._config.vocab), np.nan, np.float32))
        self._launch(tokens, 1, prefilled, first, tiles_from, kept, last_along=last_along)
        return kept.reshape(scored, -1)

    def _launch(
        self,
        tokens: list[int],
        new: int,
        prefilled: int,
        first: int,
        tiles_from: int,
        logits: NDArray[np.float32] | None = None,
        *,
        last_along: bool = True,
    ) -> list[int]:
        ring, status = np.zeros(new, np.uint64), Status()
        params = self.params(tokens, new, prefilled, first, tiles_from, logits, last_along=last_along)
        params.ring, params.status = ring.ctypes.data, ctypes.addressof(status)
        for name in PEER_POINTERS:  # this GPU is one of those that run the model
            setattr(params.peers[0], name, getattr(params, name))
        ended = self.library.launch(ctypes.byref(params))
        assert ended, "all threads wait for each other, or one gave up and said why on stderr"
        self._serial += status.passes
        return [int(word) & ((1 << TOKEN_ID_BITS) - 1) for word in ring[: status.generated]]

    def params(
        self,
        tokens: list[int],
        new: int,
        prefilled: int,
        first: int,
        tiles_from: int,
        logits: NDArray[np.float32] | None = None,
        *,
        last_along: bool = True,
    ) -> Params:
        """Of a launch, but for its GPUs and what it tells the host."""
        params = Params(
            first=first,
            prefill_end=prefilled,
            tiles_from=tiles_from,
            last_along=int(last_along),
            ids_count=len(tokens),
            max_new=new,
            sampled_from=len(tokens),
            blocks_a_split=self.layout.tuning.blocks_a_split,
            spin_budget_ns=1 << 60,
            serial=self._serial,
            sampling=sampling_of(SamplingParams(), self._config.vocab),
            ids=self.put(np.asarray(tokens, np.int32)).ctypes.data,
            stop_ids=self.put(np.full(1, -1, np.int32)).ctypes.data,
            biases=self.put(np.frombuffer(biases_of(SamplingParams()), np.uint8)).ctypes.data,
            control=self.put(np.zeros(ctypes.sizeof(Control), np.uint8)).ctypes.data,
            stop_flag=self.put(np.zeros(4, np.uint32)).ctypes.data,
            rank=self._rank,
            keep_logits=int(logits is not None),
            logits=0 if logits is None else logits.ctypes.data,
        )
        for name, array in self.memory.items():
            setattr(params, name, array.ctypes.data)
        params.kv = self._cache.ctypes.data
        return params

    def cache(self, positions: int) -> KeysAndValues:
        """What launches have left in its first `positions`."""
        return keys_and_values(self._cache, self.layout.config, positions, fp8=self.layout.tuning.fp8_cache)

    def _load(self, weights: Weights) -> dict[str, NDArray[Any]]:
        """By the names of Params. What a launch must write before it reads holds NaNs."""
        c, layout, made = self.layout.config, self.layout, self._plan
        prefill, half = prefill_bytes(layout), layout.weights
        part = PartOf(weights, layout.sharding, self._rank)
        tapes: list[NDArray[Any]] = [pack_core(made, part, core, half) for core in range(made.cores)]
        tapes.append(pack_experts(layout.experts, part, half))
        if layout.has_copy:
            tapes += _copies(made, part, half)

        def vectors(names: list[str]) -> NDArray[Any]:
            found = (vector(weights, name, half, layout.sharding) for name in names)
            return self.put(np.concatenate([each.view(np.uint16).ravel() for each in found]))

        def norms() -> NDArray[Any]:
            """And behind them the folded router."""
            halves = vectors(vector_names(c)).view(np.uint8)
            behind = [np.zeros(folded_offset(halves.size // 2) - halves.size, np.uint8)]
            if folds_router(c):
                sharding = layout.sharding
                behind += [
                    fold_router(weights, self.chosen, sharding, self._rank, i).view(np.uint8).ravel()
                    for i in range(c.layers)
                ]
            return self.put(np.concatenate([halves, *behind]))

        def unwritten(count: int) -> NDArray[Any]:
            return self.put(np.full(count, np.nan, np.float32))

        def zeros(count: int, dtype: type) -> NDArray[Any]:
            return self.put(np.zeros(count, dtype))

        return {
            "tape": self.put(np.concatenate([tape.view(np.uint8) for tape in tapes])),
            "tape_offset": self.put(tape_table(layout)),
            "tape_tiles": self.put(tile_table(layout)),
            "shares": self.put(share_table(made)),
            "embed": vectors(["embed"]),
            "norms": norms(),
            "rotation": self.put(np.concatenate([turns(rope, layout) for rope in rotations(c)])),
            "mail": zeros(layout.mail_words, np.uint32),
            "candidates": zeros(layout.candidates_bytes, np.uint8),
            "filters": zeros(layout.filter_bytes, np.uint8),
            **{name: unwritten(prefill[name] // 4) for name in ("stream", "outputs", "queries")},
            **{name: zeros(size, np.uint8) for name, size in prefill.items() if name.startswith("operand_")},
        }

    def put(self, array: NDArray[Any]) -> NDArray[Any]:
        """A flat copy, aligned as a GPU's allocations are, that lives as long as this."""
        room = np.zeros(array.nbytes + _ALIGNMENT, np.uint8)
        start = -room.ctypes.data % _ALIGNMENT
        copy = room[start : start + array.nbytes].view(array.dtype)
        copy[:] = array.ravel()
        self._held.append(room)
        return copy


def _copies(made: Plan, weights: Weights, half: DType) -> list[NDArray[Any]]:
    """What lies behind the tapes of packed weights, and their experts."""
    begins, plain = copy_offsets(made), sixteen_bits(made)
    sizes = np.diff(begins).astype(int) // 2
    cores = [pack_core(plain, weights, core, half)[:size] for core, size in enumerate(sizes)]
    before = int(made.tape_offsets()[-1]) + ExpertRegion.of(made).size
    experts = pack_experts(experts_for_tiles(made)[1], weights, half) if copies_experts(made) else None
    return [np.zeros(int(begins[0]) - before, np.uint8), *cores, *([] if experts is None else [experts])]


def _build(folder: Path, header_text: str) -> Path:
    """Once for each header."""
    folder /= hashlib.sha256(header_text.encode()).hexdigest()[:16]
    if (built := folder / "monokernel.so").exists():
        return built
    folder.mkdir(parents=True)
    return build_library(write_sources(folder, header_text), built)

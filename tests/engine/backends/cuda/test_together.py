"""Which models share launches, and with what kernels."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from engine.backends.base import Token
from engine.backends.cuda import watch
from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.contract import TOKEN_ID_BITS, Control, Finish, Status
from engine.backends.cuda.flight import flight_of
from engine.backends.cuda.launch import DeviceContext, LaunchPlan
from engine.backends.cuda.model_header import header
from engine.backends.cuda.seats import kernels_for
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.shared_launches import rows_for, shares_launches
from engine.backends.cuda.shared_memory import SHARED_BYTES
from engine.backends.cuda.storages import choose_storages
from engine.backends.cuda.tape import plan
from engine.backends.cuda.together import Seats, SeveralLaunch, breakdown_of, several_layout
from engine.errors import DeviceLost
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.storage import Storage
from engine.settings import MOST_ROWS
from tests.engine.backends.cuda.test_constants import EXPERTS, LLAMA, layout_of
from tests.engine.backends.cuda.test_launch import Clock, PlayedDevice
from tests.engine.backends.cuda.test_launch import context as launch_context
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import CONFIGS, GEMMA_2_2B, QWEN3_32B

FOUR_HEADS = replace(LLAMA, kv_heads=4)
LANEFORMER = load_preset("laneformer-2b").config
GPT_OSS = load_preset("gpt-oss-20b").config


@pytest.mark.parametrize(
    ("rows", "sizes"), [(1, ()), (2, (2,)), (3, (2, 4)), (4, (2, 4)), (5, (2, 4, 8)), (8, (2, 4, 8))]
)
def test_kernels_are_compiled_up_to_the_size_that_holds_all_rows(rows: int, sizes: tuple[int, ...]) -> None:
    assert kernels_for(rows) == sizes


@pytest.mark.parametrize(
    ("config", "storage"),
    [
        (LLAMA, None), (LANEFORMER, None), (QWEN3_32B, None),
        (LLAMA, Storage.FP8_BLOCK), (QWEN3_32B, Storage.Q8_0), (QWEN3_32B, Storage.FP8_BLOCK),
        (EXPERTS, None), (EXPERTS, Storage.FP8_BLOCK), (GPT_OSS, Storage.MXFP4),
    ],
    ids=lambda value: value.name if value else "16 bits",
)  # fmt: skip
def test_requests_of_a_model_share_launches(config: ModelConfig, storage: Storage | None) -> None:
    layout = layout_of(config, storage)
    assert shares_launches(layout)
    for size in kernels_for(8):
        several = several_layout(layout, None, size)
        assert several.capacity == layout.capacity
        assert several.slots * (several.slot_units * 512 + 16) + several.scratch_bytes < SHARED_BYTES
        assert several.slots > max(flight_of(several).by_phase)
        assert several.alone_slot_units == layout.slot_units
        assert f"constexpr int REQUESTS = {size};" in header(several)


@pytest.mark.parametrize(
    ("config", "slots"), [(LLAMA, (8, 8, 7, 5)), (LANEFORMER, (8, 7, 6, 4))], ids=["llama", "lanes"]
)
def test_vectors_of_several_requests_leave_the_ring_slots(
    config: ModelConfig, slots: tuple[int, ...]
) -> None:
    """A phase's weights are asked for while all wait for its vectors: as many as there are slots for."""
    alone = layout_of(config)
    several = (several_layout(alone, None, size) for size in kernels_for(8))
    assert (alone.slots, *(layout.slots for layout in several)) == slots


@pytest.mark.parametrize("slot_units", [None, 16])
def test_the_size_of_slots_that_is_asked_for_is_that_of_one_request(slot_units: int | None) -> None:
    layout = layout_of(LLAMA, tuning=Tuning(slot_units=slot_units))
    several = several_layout(layout, None, 4)
    assert (several.alone_slot_units, several.slot_units) == (slot_units or 48, 48)


@pytest.mark.parametrize(
    "config",
    [GEMMA_2_2B, CONFIGS["head-of-all-lanes"]],
    ids=["norms after modules", "a head over all lanes"],
)
def test_the_others_have_one_row(config: ModelConfig) -> None:
    assert not shares_launches(layout_of(config))


@pytest.mark.parametrize(
    ("config", "storage"),
    [(FOUR_HEADS, None), (EXPERTS, None), (GPT_OSS, Storage.MXFP4)],
    ids=["dense", "experts", "experts with padded columns"],
)
def test_requests_share_launches_on_several_gpus_too(config: ModelConfig, storage: Storage | None) -> None:
    layout = layout_of(config, storage, ranks=4)
    assert shares_launches(layout)
    several = several_layout(layout, None, 8)
    assert several.sharding.ranks == 4
    assert several.mail_words == layout.mail_words
    assert several.slots > max(flight_of(several).by_phase)


def test_who_cannot_share_has_one_row_whatever_is_wanted() -> None:
    assert [rows_for(layout_of(config), 4) for config in (LLAMA, EXPERTS, GEMMA_2_2B)] == [4, 4, 1]


def test_requests_of_a_model_with_lanes_share_launches() -> None:
    assert [rows_for(layout_of(LANEFORMER), wanted) for wanted in (1, 2, 8)] == [1, 2, 8]


def test_experts_in_k_quants_have_one_row() -> None:
    """Slots of another size would add them up in other parts."""
    config = replace(CONFIGS["test-experts"], ffn=256)
    sharding = shard(config, 1)
    chosen = choose_storages(RandomPacked(config, all_in(Storage.Q4_K), 3), sharding)
    layout = make_layout(plan(config, 132, chosen.storages), chosen.half, Tuning())
    assert layout.experts.gate_up is Storage.Q4_K
    assert not shares_launches(layout)


def test_keys_and_values_in_fp8_have_one_row() -> None:
    assert not shares_launches(layout_of(LLAMA, tuning=Tuning(fp8_cache=True)))


def context_after(wait: int) -> DeviceContext:
    """Of a GPU whose watchdog has seen so much: 0 is nothing."""
    control = np.frombuffer(bytes(Control(wait=wait)), np.uint8)

    def download(_address: int, shape: tuple[int, ...], _dtype: Any) -> NDArray[np.uint8]:
        assert shape == (ctypes.sizeof(Control),)
        return control

    device = SimpleNamespace(download=download)
    made = SimpleNamespace(device=device, spin_budget_s=1.0, rank=0)
    return cast("DeviceContext", made)


@pytest.mark.parametrize(("wait", "breaks"), [(0, False), (1, True)])
def test_a_launch_that_only_reads_breaks_down_if_its_watchdog_says_so(wait: int, breaks: bool) -> None:
    found, stuck = breakdown_of(context_after(wait), 0, [LaunchPlan((1, 2, 3), 0)], [Status()])
    assert (found is not None) == stuck == breaks


@pytest.mark.parametrize(("finish", "breaks"), [(Finish.LENGTH, False), (Finish.ABORTED, True)])
def test_a_launch_that_decodes_breaks_down_if_a_row_was_aborted(finish: Finish, breaks: bool) -> None:
    found, stuck = breakdown_of(context_after(1), 0, [LaunchPlan((1, 2, 3), 4)], [Status(finish=finish)])
    assert (found is not None) == stuck == breaks


class SeatDevice(PlayedDevice):
    """Where the rows' memory lies; it counts what is filled since."""

    def allocate(self, size: int, *, zero: bool = False) -> int:
        self._next += -(-size // 256) * 256
        return super().allocate(size)


def several(plans: list[LaunchPlan], rank: int = 0, ranks: int = 1) -> tuple[SeveralLaunch, SeatDevice]:
    """On the GPU of that rank."""
    device, layout = SeatDevice(), layout_of(LLAMA, ranks=ranks)
    contexts = [launch_context(device, rank=each) for each in range(ranks)]
    for context in contexts:
        context.layout = layout
    team = [Seats(context, 4) for context in contexts]
    wide = several_layout(layout, None, 4)
    return SeveralLaunch(contexts[rank], team, wide, plans), device


class WatchedDevice(SeatDevice):
    """Notes in which order the driver is asked for what."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def activate(self) -> None:
        self.asked.append("device")

    def allocate(self, size: int, *, zero: bool = False) -> int:
        self.asked.append("memory")
        return super().allocate(size, zero=zero)


def test_rows_of_a_gpu_lie_in_its_own_memory() -> None:
    """Whatever device the calls before went to."""
    device = WatchedDevice()
    context = launch_context(device, rank=0)
    context.layout = layout_of(LLAMA)
    device.asked.clear()

    Seats(context, 2)

    assert device.asked[0] == "device"
    assert set(device.asked[1:]) == {"memory"}


READS = LaunchPlan((5, 6, 7, 8), 0, prefill_end=2)
GOES_ON = LaunchPlan((1, 2, 3, 4, 5), 8, first=4, prefill_end=4, stop_ids=frozenset((9, 3)))


def test_a_launch_of_several_clears_and_copies_once() -> None:
    launch, device = several([GOES_ON, READS])
    seats = launch._seats
    [(begin, size)] = device.fills
    for address, length in (
        (seats.control, ctypes.sizeof(Control)),
        (seats.stop_flags, 16 * MOST_ROWS),
        (seats.filters, 2 * seats.sizes.filters),
    ):
        assert begin <= address
        assert address + length <= begin + size
    [(_, _, stream)] = device.uploads
    assert stream == launch._stream


def test_each_request_of_a_launch_finds_its_own() -> None:
    launch, device = several([GOES_ON, READS])
    [(base, data, _)] = device.uploads

    def ids(seat: int, first: int, count: int) -> list[int]:
        begin = launch._together.requests[seat].ids + 4 * first - base
        return data[begin : begin + 4 * count].view(np.int32).tolist()  # type: ignore[no-any-return]

    assert (ids(0, 4, 1), ids(1, 0, 4)) == ([5], [5, 6, 7, 8])
    assert launch._together.reader == 1
    first, second, *nobody = launch._together.requests
    assert first.control == second.control == launch._seats.control == first.peers[0].control
    assert second.stop_flag - first.stop_flag == 16
    assert (first.ring - first.status, second.status - first.ring) == (64, 8 * 8)
    assert [params.max_new for params in nobody] == [0] * len(nobody)
    assert [view.prefilled for view in launch._views] == [4, 0]


@pytest.mark.parametrize(("layers", "told"), [(None, (0, 16)), ((8, 12), (8, 12))])
def test_a_launch_is_told_through_which_layers_its_piece_goes(
    layers: tuple[int, int] | None, told: tuple[int, int]
) -> None:
    launch, _ = several([GOES_ON, replace(READS, layers=layers)])
    assert (launch._together.first_layer, launch._together.end_layer) == told


def test_each_request_finds_its_own_on_every_gpu() -> None:
    launch, _ = several([GOES_ON, READS], rank=1, ranks=2)
    theirs, mine = launch._team
    for seat, params in enumerate(launch._together.requests[:2]):
        assert params.mail == params.peers[1].mail == mine.mail + seat * mine.sizes.mail
        assert params.peers[0].mail == theirs.mail + seat * theirs.sizes.mail
        assert params.peers[0].candidates == theirs.candidates + seat * theirs.sizes.candidates
        assert params.peers[0].filters == theirs.filters + seat * theirs.sizes.filters
        assert (params.peers[0].control, params.control) == (theirs.control, mine.control)


def test_tokens_of_a_launch_of_several_are_read_each_from_its_ring() -> None:
    launch, _ = several([GOES_ON, replace(GOES_ON, max_new=3)])
    launch._views[0].ring[:2] = (7 | 100 << TOKEN_ID_BITS, 8 | 200 << TOKEN_ID_BITS)
    launch._views[1].ring[:3] = 9
    assert launch.take(0) == [Token(7, 100), Token(8, 200)]
    assert launch.take(0) == []
    assert [token.id for token in launch.take(1)] == [9, 9, 9]


@pytest.mark.parametrize(("part", "at", "size"), [(None, 0, 16 * MOST_ROWS), (1, 16, 16)])
def test_one_request_or_all_are_told_to_stop_by_one_copy(part: int | None, at: int, size: int) -> None:
    launch, device = several([GOES_ON, READS])
    launch.start("kernel")
    launch.stop(part)
    [(name, address, _, copied, stream)] = device.calls
    assert (name, address - launch._seats.stop_flags, copied) == ("cuMemcpyHtoDAsync", at, size)
    assert stream == launch._side
    assert set(launch._flags.tolist()) == {1}


def test_a_launch_of_several_that_shows_nothing_is_a_lost_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.0)
    monkeypatch.setattr(watch, "time", clock)
    launch, device = several([GOES_ON, READS])
    launch.start("kernel")
    clock.now += 9
    launch._views[1].status.prefilled = 1
    assert not launch.ended
    clock.now += 10 + 4 * 1.5 - 1
    assert not launch.ended
    clock.now += 2
    assert launch.ended
    assert isinstance(launch.failure, DeviceLost)
    assert device.abandoned


def test_a_gpu_that_is_not_the_first_shows_nothing_until_it_is_to_give_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(1.0)
    monkeypatch.setattr(watch, "time", clock)
    launch, device = several([GOES_ON, READS], rank=1, ranks=2)
    launch.start("kernel")
    clock.now += 1000
    assert not launch.ended
    launch.abort()
    [(name, address, _, size, stream)] = device.calls
    assert (name, size, stream) == ("cuMemcpyHtoDAsync", 4, launch._side)
    assert address == launch._seats.control + Control.aborted.offset
    assert not launch.ended
    clock.now += 10 + 4 * 1.5 + 1
    assert launch.ended
    assert isinstance(launch.failure, DeviceLost)

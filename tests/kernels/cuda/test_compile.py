"""NVRTC compiles without a GPU: every kind of specialisation must build for sm_90a within recorded limits."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from engine.backends.cuda import contract
from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.constants import Tuning, make_layout
from engine.backends.cuda.memory import Memory
from engine.backends.cuda.model_header import header
from engine.backends.cuda.monokernel import kernel_headers, layout_for
from engine.backends.cuda.options import parse_options
from engine.backends.cuda.phases import plan_of
from engine.backends.cuda.sharding import shard
from engine.backends.cuda.shared_memory import SHARED_BYTES
from engine.backends.cuda.tape import plan
from engine.backends.cuda.together import several_layout
from engine.backends.cuda.units import chunks_a_slot
from engine.errors import BackendUnavailable, ConfigError
from engine.models.catalogue import open_model
from engine.models.config import ModelConfig
from engine.models.presets import load_preset
from engine.models.weights import DType
from engine.progress import Progress
from tests.gpu.models import CONFIGS, GEMMA_2_2B, QWEN3_32B
from tests.nightly import at_night, each_time_but

LIMITS: dict[str, int] = json.loads(Path(__file__).with_name("limits.json").read_text())
"""Bytes that registers may spill in a whole kernel: no specialisation may need more than when recorded."""
SPECIALISATIONS: dict[str, tuple[str, DType, dict[str, Any]]] = {
    "laneformer-2b": ("laneformer-2b", "f16", {}),
    "laneformer-2b, 2 GPUs": ("laneformer-2b", "f16", {"devices": 2}),
    "laneformer-2b, 4 GPUs": ("laneformer-2b", "f16", {"devices": 4}),
    "laneformer-2b, 4 GPUs, profile": ("laneformer-2b", "f16", {"devices": 4, "profile": True}),
    "laneformer-2b, 8 GPUs": ("laneformer-2b", "f16", {"devices": 8}),
    "laneformer-2b, 2 GPUs, filters": ("laneformer-2b", "f16", {"devices": 2, "filters": True}),
    "smollm2-135m, filters": ("smollm2-135m", "f16", {"filters": True}),
    "llama-3.2-1b, 4 GPUs, profile": ("llama-3.2-1b", "f16", {"devices": 4, "profile": True}),
    "llama-3.2-1b": ("llama-3.2-1b", "f16", {}),
    "smollm2-135m, profile": ("smollm2-135m", "f16", {"profile": True}),
    "bf16": ("test-llama", "bf16", {}),
    "head dim 128": ("head-dim-128", "f16", {}),
    "biases": ("qwen2.5-coder-1.5b", "f16", {}),
    "normed heads": ("qwen3-8b", "bf16", {}),
    "normed heads and biases, small": ("normed-small-heads", "f16", {}),
    "long vectors": ("qwen3-32b", "bf16", {}),
    "norms after modules": ("gemma-2-2b", "bf16", {}),
    "norms after modules, 2 GPUs": ("gemma-2-2b", "bf16", {"devices": 2, "filters": True}),
    "experts": ("qwen3-30b-a3b", "bf16", {}),
    "biased experts": ("gpt-oss-20b", "bf16", {}),
    "biased experts, small": ("tiny-experts", "bf16", {}),
    "2 GPUs, profile, filters": ("test-laneformer", "f16", {"devices": 2, "profile": True, "filters": True}),
    "keys and values in FP8": ("normed-small-heads", "f16", {"fp8_cache": True}),
    "keys and values in FP8, profile, filters": (
        "normed-small-heads",
        "f16",
        {"fp8_cache": True, "profile": True, "filters": True},
    ),
    "keys and values in FP8, head dim 128": ("head-dim-128", "f16", {"fp8_cache": True}),
    "barrier": ("test-laneformer", "f16", {"sync_barrier": True}),
    "vocabulary of lanes": ("vocabulary-of-lanes", "f16", {}),
    "sum of lanes": ("sum-of-lanes", "f16", {}),
    "head of all lanes": ("head-of-all-lanes", "f16", {}),
    "two requests": ("test-llama", "f16", {"requests": 2, "filters": True}),
    "two requests, 2 GPUs": ("test-laneformer", "f16", {"devices": 2, "requests": 2, "filters": True}),
    "two requests, 2 GPUs, profile": (
        "test-laneformer",
        "f16",
        {"devices": 2, "requests": 2, "profile": True, "filters": True},
    ),
    "eight requests, 2 GPUs": ("llama-3.2-1b", "f16", {"devices": 2, "requests": 8, "filters": True}),
    "eight requests": ("llama-3.2-1b", "f16", {"requests": 8, "filters": True}),
    "eight requests, small": ("smollm2-135m", "f16", {"requests": 8, "filters": True}),
    "eight requests, experts": ("qwen3-30b-a3b", "bf16", {"requests": 8, "filters": True}),
    "eight requests, biased experts": ("gpt-oss-20b", "bf16", {"requests": 8, "filters": True}),
    "eight requests, experts, 4 GPUs": (
        "qwen3-30b-a3b",
        "bf16",
        {"devices": 4, "requests": 8, "filters": True},
    ),
}


EACH_TIME = (
    "biased experts, small",
    "keys and values in FP8, profile, filters",
    "two requests, 2 GPUs, profile",
)
"""Between them most switches of the kernel, of small models; the others take minutes, and are compiled each
night."""


def config_of(name: str) -> ModelConfig:
    published = {config.name: config for config in (QWEN3_32B, GEMMA_2_2B)}
    return published.get(name) or CONFIGS.get(name) or load_preset(name).config


def header_of(
    name: str,
    weights: DType = "f16",
    devices: int = 1,
    filters: bool = False,
    requests: int = 1,
    **tuning: Any,
) -> str:
    tuned = Tuning(**tuning)
    sharding = shard(config_of(name), devices)
    made = plan_of(sharding, 132, ())
    layout = make_layout(made, weights, tuned, sharding=sharding, requests=requests)
    return header(layout, filters=filters)


def of_monokernel(log: str, number: str) -> int:
    """What the compiler says of the kernel; `number` is a pattern with one group."""
    entry = log.split("Function properties for monokernel")[1]
    return int(re.search(number, entry)[1])  # type: ignore[index]


SPILLED = r"(\d+) bytes spill stores"


@pytest.mark.slow
@pytest.mark.parametrize("which", each_time_but(SPECIALISATIONS.keys() - EACH_TIME, SPECIALISATIONS))
def test_specialisations_compile_within_their_limits(which: str) -> None:
    name, weights, tuning = SPECIALISATIONS[which]
    compiled = compile_kernel("monokernel.cu", header_of(name, weights, **tuning), verbose=True, cache=False)
    registers = of_monokernel(compiled.log, r"Used (\d+) registers")
    spilled = of_monokernel(compiled.log, SPILLED)
    assert compiled.image.startswith(b"\x7fELF")
    assert registers * 384 <= 65536
    assert b"6packed" not in compiled.image, "16-bit models hold none of the code for packed weights"
    assert spilled <= LIMITS[which], f"{which} spills {spilled} bytes, {LIMITS[which]} when recorded"
    assert "warning" not in compiled.log
    assert "serialized" not in compiled.log, "products of wgmma that wait for each other"


@pytest.mark.nightly
@pytest.mark.parametrize("filters", [False, True], ids=["plain", "filters"])
@pytest.mark.parametrize("devices", [4, 8])
@pytest.mark.parametrize("name", ["gpt-oss-20b", "gpt-oss-120b"])
def test_experts_whose_columns_are_padded_compile_within_their_limits(
    name: str, devices: int, filters: bool
) -> None:
    text = kernel_headers(open_model(f"random:{name}"), devices, 132, {}, profile=False)[filters]
    log = compile_kernel("monokernel.cu", text, verbose=True, cache=False).log
    assert of_monokernel(log, SPILLED) <= LIMITS[f"{name}, {devices} GPUs{', filters' * filters}"]
    assert "warning" not in log
    assert "serialized" not in log


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["random:gpt-oss-20b", "random:qwen3-8b:mxfp4", "random:qwen3-8b:fp8_block"])
def test_products_with_packed_weights_do_not_wait_for_each_other(name: str) -> None:
    """The compiler serializes all wgmma of a kernel, and says so, if one's sums may be read too early."""
    text = kernel_headers(open_model(name), 1, 132, {}, profile=False)[0]
    compiled = compile_kernel("monokernel.cu", text, verbose=True, cache=False)
    assert "serialized" not in compiled.log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "requests"),
    [
        ("llama-3.2-1b:fp8_block", 4),
        at_night("qwen3-8b:fp8_block", 2), at_night("qwen3-8b:fp8_block", 8),
        at_night("gpt-oss-20b", 2), at_night("gpt-oss-20b", 4), at_night("gpt-oss-20b", 8),
        at_night("qwen3-30b-a3b:fp8_block", 2),
    ],
)  # fmt: skip
def test_those_of_several_requests_with_packed_weights_do_not_either(name: str, requests: int) -> None:
    alone = layout_for(open_model(f"random:{name}"), 1, 132, parse_options({}))
    text = header(several_layout(alone, None, requests), filters=True)
    compiled = compile_kernel("monokernel.cu", text, verbose=True, cache=False)
    assert "serialized" not in compiled.log
    assert "warning" not in compiled.log


@pytest.mark.nightly
def test_a_look_asks_for_all_words_before_it_uses_any() -> None:
    """Left to itself the compiler checks each word as it comes, and asks for the next one after that."""
    headed = header_of("llama-3.2-1b", requests=8, filters=True)
    code = instructions(compile_kernel("monokernel.cu", headed, cache=False).image)
    late, loads = late_loads(behind_tiles(code))
    assert (late, loads > 0) == (0, True)


@pytest.mark.parametrize(("between", "late"), [((0x986, 1), 1), ((0x947, 0), 0)], ids=["a use", "a branch"])
def test_a_load_behind_the_use_of_another_is_late(between: tuple[int, int], late: int) -> None:
    """A look's loads: of a word each, under a predicate, with a barrier that the first use waits for."""
    load = (0x981, 6 << 9 | 7 << 13), 0
    words = [load, ((between[0], 0), between[1]), load]
    code = b"".join(struct.pack("<QQ", op, kind | waits << 52) for (op, kind), waits in words)
    assert late_loads(code) == (late, 2)


def behind_tiles(code: bytes) -> bytes:
    """Decode, and what lies behind it. A prompt's tiles load queries as a look loads words; they come before,
    and of a model in 16 bits they alone have products of wgmma."""
    wgmma = 0x9F0
    last = max(i for i, (low, _) in enumerate(struct.iter_unpack("<QQ", code)) if low & 0xFFF == wgmma)
    return code[16 * (last + 1) :]


def late_loads(code: bytes) -> tuple[int, int]:
    """How many relaxed loads of missing words stand behind the first use of another, no branch between; and
    of how many.

    A load names a barrier, on which the first use of what it loads waits. It has a predicate: whether the
    word is missing.
    """
    load, branches, sixteen_bytes, relaxed, no_barrier, always = 0x981, range(0x940, 0x960), 6, 7, 7, 7
    late, loads, barriers, used = 0, 0, 0, False
    for low, high in struct.iter_unpack("<QQ", code):
        opcode, barrier, waits_for = low & 0xFFF, high >> 46 & 7, high >> 52 & 0x3F
        if opcode in branches:
            barriers, used = 0, False
            continue
        used = used or bool(barriers & waits_for)
        kind = (opcode, high >> 9 & 7, high >> 13 & 0xF)
        if kind == (load, sixteen_bytes, relaxed) and low >> 12 & 0xF != always:
            loads += 1
            late += used
            if barrier != no_barrier:
                barriers |= 1 << barrier
    return late, loads


def instructions(image: bytes) -> bytes:
    """The code of monokernel in a cubin, which is an ELF file."""
    (table,) = struct.unpack_from("<Q", image, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", image, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", image, table + i * size) for i in range(count)]
    names = sections[names_index][4]
    (code,) = (
        image[offset : offset + length]
        for name, _, _, _, offset, length in sections
        if image[names + name :].startswith(b".text.monokernel\0")
    )
    return code


def test_the_packing_kernels_compile() -> None:
    for name in ("pack.cu", "pack_units.cu"):
        assert compile_kernel(name, "", cache=False).image.startswith(b"\x7fELF")


def test_a_compiled_kernel_is_kept_and_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    said: list[Progress] = []
    first = compile_kernel("pack.cu", "", progress=said.append)
    second = compile_kernel("pack.cu", "", progress=said.append)
    assert first.image == second.image
    assert second.seconds == 0.0
    assert [one.what for one in said] == ["compiling pack.cu for sm_90a (once for this model)"]


def test_a_source_that_does_not_compile_is_an_error_with_the_compilers_words() -> None:
    with pytest.raises(BackendUnavailable, match=r"monokernel\.cu does not compile for sm_90a"):
        compile_kernel("monokernel.cu", "namespace model {}", cache=False)


def test_a_structure_of_another_size_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """The generated header asserts what ctypes lays out."""
    text = contract.text()
    assert f"sizeof(Params) == {ctypes.sizeof(contract.Params)}" in text
    wrong = text.replace("    float temperature;\n", "    double temperature;\n")
    monkeypatch.setattr(contract, "text", lambda: wrong)
    with pytest.raises(BackendUnavailable, match="as the host packs it"):
        compile_kernel("pack.cu", "", cache=False)


def test_every_address_of_a_launch_comes_from_memory_or_is_its_own() -> None:
    own = {"logits", "ids", "stop_ids", "biases", "ring", "status", "profile"}
    reserved = {field.name for field in fields(Memory)}
    assert set(contract.POINTERS) - own <= reserved
    assert set(contract.PEER_POINTERS) <= reserved


def test_vectors_that_leave_no_room_for_a_ring_are_refused() -> None:
    wide = replace(load_preset("llama-3.2-1b").config, hidden=32768)
    with pytest.raises(ConfigError, match=r"ring slots .* leave the option slot_units out"):
        make_layout(plan(wide, 132), "f16", Tuning(slot_units=48))


def test_long_vectors_come_in_windows_so_that_the_ring_keeps_its_size() -> None:
    layout = make_layout(plan(QWEN3_32B, 132), "bf16", Tuning())
    assert "constexpr int WINDOW_CHUNKS = 160;" in header(layout)
    assert layout.slot_units == 48 and layout.slots >= 6


def test_vectors_that_need_all_of_their_room_get_smaller_slots() -> None:
    wide = replace(load_preset("llama-3.2-1b").config, hidden=32768)
    layout = make_layout(plan(wide, 132), "f16", Tuning())
    assert layout.slot_units < 48 and layout.slots >= 4


def test_a_slot_of_four_tiles_is_full_though_warps_have_uneven_parts() -> None:
    assert chunks_a_slot(48, 4) == 12
    assert chunks_a_slot(48, 5) == 8  # a warp's registers hold no more


def test_vectors_of_more_pieces_than_a_thread_keeps_track_of_are_refused() -> None:
    wide = replace(load_preset("llama-3.2-1b").config, ffn=34816)
    with pytest.raises(ConfigError, match=r"34816 columns that a product reads; .* at most 32768"):
        make_layout(plan(wide, 132), "f16", Tuning(slot_units=32))


def test_rings_use_what_activations_leave_of_shared_memory() -> None:
    for name in ("laneformer-2b", "llama-3.2-1b", "smollm2-135m"):
        layout = make_layout(plan(load_preset(name).config, 132), "f16", Tuning())
        used = layout.slots * layout.slot_units * 512 + layout.scratch_bytes
        assert SHARED_BYTES - used < 2 * layout.slot_units * 512


def test_items_of_few_query_heads_leave_a_ring_of_experts_more_slots() -> None:
    for name in ("gpt-oss-20b", "gpt-oss-120b", "qwen3-30b-a3b"):
        layout = make_layout(plan(load_preset(name).config, 132), "bf16", Tuning())
        assert layout.slots_of(filters=False) == 7, name


def test_a_ring_without_the_vocabularys_table_leaves_prompts_their_sums() -> None:
    """Of short vectors it is prompts that need the most room, and the table lies within that."""
    small, tuning = load_preset("tiny-experts").config, Tuning(slot_units=16)
    models = (replace(small, vocab=vocab) for vocab in (1024, 131072))
    few, many = (make_layout(plan(model, 132), "f16", tuning).slots_of(filters=False) for model in models)
    assert few == many


def test_compiling_leaves_the_bytes_that_the_interpreter_shares_alone() -> None:
    compile_kernel("pack.cu", "", cache=False)
    (code,) = bytes([32])  # the interpreter keeps one object for each single byte
    assert code == 32

"""The monokernel's sources as C++ for the CPU: each PTX statement becomes a call of emulation.h."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from engine.backends.cuda import contract, wgmma
from engine.backends.cuda.compile import SOURCES

_ASM = re.compile(r"\basm(?:\s+volatile)?\s*\(")
_OPERAND = re.compile(r'"[=+]?[rlfhn]"\s*\(')
_TEXT = re.compile(r'"((?:[^"\\]|\\.)*)"')
_WORDS = re.compile(r"(ld|st)(?:\.relaxed\.\w+)?\.global(?:\.v(\d))?\.u(32|64)")
_SHARED = re.compile(r"extern __shared__ [^;]*memory\[\];")
_NOTHING = ("fence", "prefetch", "setmaxnreg", "wgmma.commit", "wgmma.wait")
"""What only a GPU needs: order in memory, hints."""
_CALLS = {
    "mbarrier.init": "emulation::barrier_init({0}, {1})",
    "expect_tx": "emulation::barrier_expect({0}, {1})",
    "mbarrier.arrive": "emulation::barrier_arrive({0})",
    "bra LOOK": "emulation::await_barrier({0}, {1}, {2})",
    "mbarrier.try_wait": "{0} = emulation::barrier_passed({1}, {2})",
    "mbarrier.test_wait": "{0} = emulation::barrier_passed({1}, {2})",
    "mapa.shared": "{0} = emulation::neighbours_address({1})",
    "complete_tx::bytes.f32": "emulation::send({0}, {{{1}}}, {2})",
    "complete_tx::bytes.v2.f32": "emulation::send({0}, {{{1}, {2}}}, {3})",
    "barrier.cluster": "emulation::meet_cluster()",
    "cp.async.bulk.shared": "emulation::copy({0}, {1}, {2}, {3})",
    "createpolicy": "{0} = 0",
    "globaltimer": "{0} = 0",
    "clock64": "{0} = emulation::ticks()",
    "%tid.x": "{0} = threadIdx.x",
    "bar.sync 1": "emulation::meet_block(1, {0})",
    "bar.sync %0": "emulation::meet_block({0}, {1})",
    "bar.arrive": "emulation::arrive_block({0})",
    "ex2.approx": "{0} = exp2f({1})",
    "movmatrix": "{0} = emulation::transposed({1})",
    "k32.f32.e4m3.e4m3": "emulation::multiply_e4m3<ADDS>(sums, rows, vectors)",
    "k32.f32.e5m2.e4m3": "emulation::multiply_e5m2(sums, rows, vectors)",
    "m64n8k16": "emulation::multiply_rows({all})",
    "setp.ne": "emulation::multiply_rows(sums, rows, vectors, adds)",
    "wgmma.mma_async": "emulation::multiply_warpgroup<emulation::NUMBER>(sums, a, b)",
    "f32.f16.f16.f32": "emulation::multiply<emulation::f16>({all})",
    "f32.bf16.bf16.f32": "emulation::multiply<emulation::bf16>({all})",
    "e4m3x2.f32": "{0} = emulation::e4m3_bits({2}) | emulation::e4m3_bits({1}) << 8",
    "e4m3x2.f16x2": "{0} = emulation::e4m3_halves({1})",
    "f16x2.e4m3x2": "{0} = emulation::halves_of_e4m3({1})",
    "cvt.rn.f16x2": "{0} = emulation::f16_bits({2}) | emulation::f16_bits({1}) << 16",
    "cvt.rn.satfinite.f16x2": "{0} = emulation::saturated_bits({2}) | emulation::saturated_bits({1}) << 16",
    "cvt.rn.bf16x2": "{0} = emulation::bf16_bits({2}) | emulation::bf16_bits({1}) << 16",
    "cvt.rn.f16.f32": "{0} = emulation::f16_bits({1})",
    "cvt.rn.bf16.f32": "{0} = emulation::bf16_bits({1})",
    "cvt.f32.f16 %0, %1;": "{0} = emulation::f16({1})",
    "max.u16x2": "{0} = emulation::larger_halves({1}, {2})",
    "add.rn.f16x2": "{0} = emulation::add_halves({1}, {2})",
    "cvt.f32.f16 %0, a": "{0} = emulation::f16({1} & 0xffff)",
    "cvt.f32.f16 %0, b": "{0} = emulation::f16({1} >> 16)",
}
"""What a statement contains, and what it becomes of its operands. The first that fits."""


def write_sources(folder: Path, header: str) -> Path:
    """All that one launch needs to be built, with `header` as model.h; the file to compile."""
    write_headers(folder, header)
    kernel = convert((SOURCES / "monokernel.cu").read_text(encoding="utf-8"))
    source = folder / "monokernel.cpp"
    source.write_text(_PREFACE + kernel + _ENTRY, encoding="utf-8")
    return source


def write_headers(folder: Path, header: str) -> None:
    """What is the same for all models, and `header` as model.h."""
    (folder / "model.h").write_text(header, encoding="utf-8")
    for path in SOURCES.glob("*.cuh"):
        (folder / path.name).write_text(convert(path.read_text(encoding="utf-8")), encoding="utf-8")
    (folder / "wgmma.h").write_text(convert(wgmma.text()), encoding="utf-8")
    (folder / "contract.h").write_text(contract.text(), encoding="utf-8")


_PREFACE = f"""#define THREADS_OF_A_BLOCK {contract.THREADS}
#include "emulation.h"
"""
_ENTRY = """
static const Launched* launched;
static void run_thread() {
    monokernel(launched[emulation::current->gpu]);
    emulation::current->ended = true;
    emulation::wait();
}
extern "C" int launch(const Launched* handed) {
    launched = handed;
    return emulation::run(model::RANKS, model::SMS, THREADS, run_thread);
}
extern "C" unsigned long long copied_bytes() { return emulation::copied_bytes; }
"""


def convert(text: str) -> str:
    """Raises ValueError for a PTX statement that the emulation does not know."""
    done, at = "", 0
    while found := _ASM.search(text, at):
        end = _closing(text, found.end() - 1)
        done += text[at : found.start()] + _call(text[found.end() : end])
        at = end + 1
    return _SHARED.sub("u8* memory = emulation::shared_memory();", done + text[at:])


def _call(statement: str) -> str:
    operands = _operands(statement)
    ptx = "".join(_TEXT.findall(_OPERAND.sub("(", statement.replace('"memory"', ""))))
    if "mbarrier" not in ptx and (words := _WORDS.search(ptx)):
        return _words(words[1], int(words[2] or 1), words[3], operands)
    for part, call in _CALLS.items():
        if part in ptx:
            return call.format(*operands, all=", ".join(operands))
    if not ptx or any(part in ptx for part in _NOTHING):
        return "(void)0"
    raise ValueError(f"the emulation does not know the PTX statement {ptx!r}: add it to _CALLS")


def _words(direction: str, count: int, bits: str, operands: Sequence[str]) -> str:
    """Plain and relaxed loads and stores, one or several words side by side."""
    if direction == "ld":
        address = f"((const u{bits}*)({operands[count]}))"
        return (
            "(" + ", ".join(f"{operands[i]} = emulation::load({address} + {i})" for i in range(count)) + ")"
        )
    address = f"((u{bits}*)({operands[0]}))"
    return "(" + ", ".join(f"{address}[{i}] = {operands[1 + i]}" for i in range(count)) + ")"


def _operands(statement: str) -> list[str]:
    found, at = [], 0
    while operand := _OPERAND.search(statement, at):
        at = _closing(statement, operand.end() - 1)
        found.append(statement[operand.end() : at])
    return found


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis at `opening` is closed; those within strings do not count."""
    depth, quoted, at = 0, False, opening
    while True:
        if text[at] == "\\" and quoted:
            at += 1
        elif text[at] == '"':
            quoted = not quoted
        elif not quoted:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            if depth == 0:
                return at
        at += 1

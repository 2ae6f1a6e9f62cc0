"""Reads what the monokernel's profile wrote (kernels/cuda/profile.cuh)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import TraceSpan
from engine.backends.cuda.constants import Layout
from engine.backends.cuda.contract import ProfileWord, Step
from engine.timings import PhaseTime, phases_of

_IN_LAYER = (Step.QKV, Step.ATTENTION, Step.ATTN_OUT, Step.GATE_UP, Step.DOWN)
_IN_EXPERT_LAYER = (*_IN_LAYER[:3], Step.ROUTER, *_IN_LAYER[3:])
_AFTER_LAYERS = (Step.HEAD, Step.SAMPLE)

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class LaunchProfile:
    """Where the time of a launch of several requests went: mean microseconds a pass, over SMs and passes."""

    requests: int
    passes: int
    phases_us: Mapping[str, PhaseTime]
    starved_us: Mapping[str, float]
    """The part of a phase's work in which weights were not there yet."""


def mean_phases(found: Sequence[Mapping[str, PhaseTime]]) -> dict[str, PhaseTime]:
    """Of GPUs that ran a model together."""
    parts = ("work", "wait_local", "wait_peer")
    return {
        name: PhaseTime(*(float(np.mean([getattr(of[name], part) for of in found])) for part in parts))
        for name in found[0]
    }


def mean_starved(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([of[name] for of in found])) for name in found[0]}


def mean_profile(found: Sequence[LaunchProfile]) -> LaunchProfile:
    """Of GPUs that ran a model together."""
    phases = mean_phases([of.phases_us for of in found])
    return replace(found[0], phases_us=phases, starved_us=mean_starved([of.starved_us for of in found]))


class ProfileBuffer:
    """Layout of one launch's buffer. `trace`: which decode passes (first, last) to record in full."""

    def __init__(self, layout: Layout, trace: tuple[int, int]) -> None:
        self._sms = layout.plan.cores
        self._layers = layout.config.layers
        self._has_experts = layout.config.experts is not None
        self._in_layer = _IN_EXPERT_LAYER if self._has_experts else _IN_LAYER
        self._first, self._traced = trace[0], max(0, trace[1] - trace[0])

    @property
    def _steps(self) -> int:
        return self._layers * len(self._in_layer) + len(_AFTER_LAYERS)

    @property
    def size(self) -> int:
        """Bytes."""
        return 8 * self._sms * (ProfileWord.COUNT + self._traced * self._steps * 3)

    def of_several(self, words: Words, requests: int) -> LaunchProfile:
        passes = int(self._heads(words)[0, ProfileWord.PASSES])
        return LaunchProfile(requests, passes, self.phases_us(words), self.starved_us(words))

    def _heads(self, words: Words) -> Words:
        return words[: self._sms * ProfileWord.COUNT].reshape(self._sms, ProfileWord.COUNT)

    def phases_us(self, words: Words) -> dict[str, PhaseTime]:
        """Mean microseconds of a pass, over SMs and passes.

        A wait for another GPU at the end of a phase reaches most warps as a vector that comes late: what
        they wait for it in the phase after counts as waiting for that GPU, once. In the head of a model whose
        lanes are summed before the norm, an SM waits for another GPU only where its own columns are late; the
        columns of other SMs reach it as a local wait.
        """
        heads = self._heads(words)
        us = self._us_a_clock(heads)
        passes = max(1, int(heads[0, ProfileWord.PASSES]))
        result = dict.fromkeys(phases_of(self._has_experts), PhaseTime(0.0))
        for kind in (*self._in_layer, *_AFTER_LAYERS):
            wait, work = (heads[:, ProfileWord.TIMES + 2 * kind + part] * us / passes for part in (0, 1))
            peer = heads[:, ProfileWord.PEER + kind] * us / passes
            so_far, name = result[self._phase(kind)], self._phase(kind)
            result[name] = PhaseTime(
                so_far.work + float(work.mean()),
                so_far.wait_local + float(wait.mean()),
                so_far.wait_peer + float(peer.mean()),
            )
        for name, after in self._handed_on.items():
            late = result[after]
            result[after] = replace(late, wait_local=max(0.0, late.wait_local - result[name].wait_peer))
        return result

    def _phase(self, kind: Step) -> str:
        """What a step counts as: both products of experts are one phase."""
        of_experts = self._has_experts and kind in (Step.GATE_UP, Step.DOWN)
        return "experts" if of_experts else kind.name.lower()

    @property
    def _handed_on(self) -> dict[str, str]:
        """Phases that end with an exchange between lanes, and who waits for what comes out."""
        return {
            self._phase(Step.ATTN_OUT): self._phase(self._in_layer[3]),
            self._phase(Step.DOWN): self._phase(Step.QKV),
        }

    def starved_us(self, words: Words) -> dict[str, float]:
        """The part of each phase's work in which weights were not there yet: mean microseconds of a pass."""
        heads = self._heads(words)
        us = self._us_a_clock(heads) / max(1, int(heads[0, ProfileWord.PASSES]))
        result = dict.fromkeys(phases_of(self._has_experts)[1:], 0.0)
        for kind in (*self._in_layer, *_AFTER_LAYERS):
            result[self._phase(kind)] += float((heads[:, ProfileWord.STARVED + kind] * us).mean())
        return result

    def spans(self, words: Words) -> tuple[TraceSpan, ...]:
        """Every step of the traced passes on every SM, on the launch's clock."""
        if not self._traced:
            return ()
        heads = self._heads(words)
        us = self._us_a_clock(heads)
        start_ns = heads[:, ProfileWord.BEGUN_NS].min()
        stamps = words[self._sms * ProfileWord.COUNT :].reshape(self._traced, self._sms, self._steps, 3)
        spans: list[TraceSpan] = []
        for traced in range(min(self._traced, max(0, int(heads[0, ProfileWord.PASSES]) - self._first))):
            for sm in range(self._sms):
                base = float(heads[sm, ProfileWord.BEGUN_NS] - start_ns) / 1e3
                clocks = (
                    stamps[traced, sm].astype(np.int64) - np.int64(heads[sm, ProfileWord.BEGUN_CLOCK])
                ) * us[sm] + base
                for step, (begun, ready, ended) in enumerate(clocks.tolist()):
                    name = self._name(step)
                    if ready > begun:
                        spans.append(TraceSpan(name, 0, sm, begun, ready - begun, "wait_local"))
                    spans.append(TraceSpan(name, 0, sm, ready, ended - ready))
        return tuple(spans)

    def _name(self, step: int) -> str:
        layer, kind = divmod(step, len(self._in_layer))
        if layer >= self._layers:
            return _AFTER_LAYERS[kind].name.lower()
        return f"{self._in_layer[kind].name.lower()} {layer}"

    @staticmethod
    def _us_a_clock(heads: Words) -> NDArray[np.float64]:
        ns = heads[:, ProfileWord.ENDED_NS] - heads[:, ProfileWord.BEGUN_NS]
        clocks = heads[:, ProfileWord.ENDED_CLOCK] - heads[:, ProfileWord.BEGUN_CLOCK]
        per_clock: NDArray[np.float64] = (
            ns.astype(np.float64) / 1e3 / np.maximum(clocks.astype(np.float64), 1.0)
        )
        return per_clock

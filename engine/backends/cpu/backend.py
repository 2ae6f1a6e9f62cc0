"""The cpu backend: packs a model onto the tapes of a team of threads and runs requests on it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from engine.backends.base import (
    DeviceInfo,
    Job,
    LoadProgress,
    Outcome,
    Token,
    Topology,
    TraceSpan,
    check_job,
    check_sequence,
    require_features,
    unheard,
)
from engine.backends.cpu import library
from engine.backends.cpu.build import digest
from engine.backends.cpu.library import NativeJob, Shape, Span, Team, check
from engine.backends.prefix_cache import PrefixCacheUse
from engine.errors import BackendUnavailable, CheckpointError, RequestError
from engine.measuring.bandwidth import usable_cores
from engine.models.config import Feature, HeadKind, ModelConfig
from engine.models.rope import RopeLayout, inverse_frequencies
from engine.models.weights import DType, Weights
from engine.processor import processor_name
from engine.sampling import OPTIONS, SamplingParams
from engine.timings import PHASES, FinishReason, PhaseTime

FEATURES: frozenset[Feature] = frozenset()
"""What the kernel computes beyond a plain Llama's arithmetic."""

POLLED = 512
"""Tokens fetched from the ring at a time."""


@dataclass(frozen=True, slots=True)
class Options:
    """`threads` of each virtual device; `parallelism` of a model without lanes on several devices is tp."""

    threads: int
    sync: Literal["mailbox", "barrier"] = "mailbox"
    link_latency_us: float = 0.0
    block: int = 0
    pin: bool = True
    isa: str | None = None


class CpuBackend:
    """Implements engine.backends.base.Backend."""

    name = "cpu"

    def __init__(
        self, weights: Weights, devices: int, options: Options, progress: LoadProgress = unheard
    ) -> None:
        self.config = weights.config
        require_features(self.config, FEATURES, self.name)
        progress("building the kernel", 0, 1, "library")
        self._library, target = library.open_library(options.isa)
        self._lock = threading.Lock()
        self._current: CpuLaunch | None = None
        processor = DeviceInfo(f"{processor_name()} ({target.name}, {options.threads} threads)")
        lanes = self.config.lanes.count
        self.topology = Topology(
            devices=(processor,) * devices,
            parallelism="none" if devices == 1 else "dtp" if lanes > 1 else "tp",
            lanes=lanes,
            link="" if devices == 1 else _link(options.link_latency_us),
        )
        self.facts: dict[str, Any] = {**asdict(options), "isa": target.name, "kernel": digest()}
        self._kernel = self._create(devices, options, weights.native)
        try:
            self._pack(weights, devices, progress)
        except BaseException:
            self.close()
            raise

    def _create(self, devices: int, options: Options, native: DType) -> ctypes.c_void_p:
        shape = _shape(self.config, devices, native)
        team = Team(
            devices=devices,
            threads=options.threads,
            barrier=options.sync == "barrier",
            pin=options.pin,
            block=options.block,
            link_latency_ns=round(options.link_latency_us * 1000),
        )
        kernel = ctypes.c_void_p()
        code = self._library.ml_create(ctypes.byref(shape), ctypes.byref(team), ctypes.byref(kernel))
        check(code, f"preparing {self.config.name} for the CPU")
        return kernel

    def _pack(self, weights: Weights, devices: int, progress: LoadProgress) -> None:
        """Layers side by side: decoding and packing let go of the interpreter, and each has its own place."""
        with ThreadPoolExecutor(usable_cores()) as pool:
            done = [pool.submit(self._pack_ends, weights)]
            done += [pool.submit(self._pack_layer, weights, i, devices) for i in range(self.config.layers)]
            for ready, future in enumerate(done, 1):
                future.result()
                progress("packing weights", ready, len(done), "layers")

    def _pack_layer(self, weights: Weights, layer: int, devices: int) -> None:
        lanes = self.config.lanes.count

        def get(name: str) -> NDArray[np.uint16]:
            found = _bits(weights, f"layers.{layer}.{name}")
            return found.reshape(lanes, -1, found.shape[-1])

        for which, name in enumerate(("attn_norm", "ffn_norm")):
            self._put_norm(which, layer, weights.get(f"layers.{layer}.{name}"))
        q, k, v, gate, up = (get(name) for name in ("wq", "wk", "wv", "w_gate", "w_up"))
        out, down = get("wo"), get("w_down")
        if lanes == 1 and devices > 1:
            q, k, v, gate, up = (_split_rows(m, devices) for m in (q, k, v, gate, up))
            out, down = _split_columns(out, devices), _split_columns(down, devices)
        for shard in range(len(q)):
            self._put("qkv", layer, shard, np.concatenate([q[shard], k[shard], v[shard]]))
            self._put("attn_out", layer, shard, out[shard])
            self._put("gate_up", layer, shard, np.concatenate([gate[shard], up[shard]]))
            self._put("down", layer, shard, down[shard])

    def _pack_ends(self, weights: Weights) -> None:
        """The embedding, the last norm and the head."""
        config = self.config
        self._put_norm(2, 0, weights.get("norm"))
        embedding = _bits(weights, "embed")
        if not config.tied_head:
            self._put("embed", 0, 0, embedding)
        head = embedding if config.tied_head else _bits(weights, "head")
        by_lane = config.lanes.head is HeadKind.VOCAB_PARALLEL
        for shard, rows in enumerate(np.split(head, config.lanes.count) if by_lane else [head]):
            self._put("head", 0, shard, rows)

    def _put(self, tensor: str, layer: int, shard: int, rows: NDArray[np.uint16]) -> None:
        rows = np.ascontiguousarray(rows)
        pointer = rows.ctypes.data_as(ctypes.POINTER(ctypes.c_uint16))
        code = self._library.ml_pack(self._kernel, library.TENSORS[tensor], layer, shard, pointer)
        check(code, f"packing {tensor} of layer {layer}")

    def _put_norm(self, which: int, layer: int, scale: NDArray[Any]) -> None:
        values = np.ascontiguousarray(scale, np.float32)
        if values.shape != (self.config.hidden,):
            raise CheckpointError(f"a norm has the shape {values.shape}, not ({self.config.hidden},)")
        pointer = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        check(self._library.ml_norm(self._kernel, which, layer, pointer), "packing a norm")

    def launch(self, job: Job) -> CpuLaunch:
        check_job(self.config, job)
        with self._lock:
            self._require_idle()
            self._current = CpuLaunch(self._library, self._kernel, job)
            return self._current

    def logits(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after each of `tokens`: [len(tokens), vocab]."""
        check_sequence(self.config, tokens)
        with self._lock:
            self._require_idle()
            out = np.empty((len(tokens), self.config.vocab), np.float32)
            launch = CpuLaunch(self._library, self._kernel, Job(tuple(tokens), 1), all_logits=out)
            while launch.outcome is None:
                launch.poll(1.0)
            return out

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s that all cores together read from memory; virtual devices share it."""
        gbs = ctypes.c_double()
        check(
            self._library.ml_read_bandwidth(usable_cores(), ctypes.byref(gbs)),
            "measuring the memory's bandwidth",
        )
        devices = len(self.topology.devices)
        return (gbs.value / devices,) * devices

    def core_distance_ns(self) -> float:
        """Nanoseconds that a cache line takes between the first two usable cores; 0 if there is only one."""
        distance = ctypes.c_double()
        check(self._library.ml_core_distance(ctypes.byref(distance)), "measuring the cores' distance")
        return distance.value

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        return PrefixCacheUse()

    def state(self) -> dict[str, Any]:
        """For the environment: a virtual machine's cores may share a die now and lie apart a minute later."""
        return {"core_distance_ns": round(self.core_distance_ns(), 1)}

    def close(self) -> None:
        with self._lock:
            if self._kernel:
                self._library.ml_destroy(self._kernel)
                self._kernel = ctypes.c_void_p()

    def _require_idle(self) -> None:
        if not self._kernel:
            raise RequestError("the backend cpu has been closed; open it again")
        if self._current is not None and self._current.outcome is None:
            raise RequestError("the backend cpu runs one launch at a time; close the other one first")


class CpuLaunch:
    """One request in flight. Implements engine.backends.base.Launch."""

    def __init__(
        self,
        native: ctypes.CDLL,
        kernel: ctypes.c_void_p,
        job: Job,
        *,
        all_logits: NDArray[np.float32] | None = None,
    ) -> None:
        self._library = native
        self._kernel = kernel
        self._job = job
        self._outcome: Outcome | None = None
        self._ids = (ctypes.c_int32 * POLLED)()
        self._times = (ctypes.c_int64 * POLLED)()
        trace = job.trace or (0, 0)
        described = NativeJob(
            tokens=(ctypes.c_int32 * len(job.tokens))(*job.tokens),
            count=len(job.tokens),
            max_tokens=min(job.max_tokens, 2**31 - 1),
            stop_ids=(ctypes.c_int32 * len(job.stop_ids))(*sorted(job.stop_ids)),
            stop_count=len(job.stop_ids),
            **_sampling_fields(job.sampling),
            profile=job.profile,
            trace_first=trace[0],
            trace_last=trace[1],
            all_logits=None
            if all_logits is None
            else all_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        )
        check(native.ml_launch(kernel, ctypes.byref(described)), "starting the request")

    @property
    def prefilled(self) -> int:
        return self._finish()[2]

    @property
    def outcome(self) -> Outcome | None:
        if self._outcome is None:
            code, prefill_ns, prefilled = self._finish()
            if code != library.RUNNING:
                self._outcome = Outcome(
                    finish_reason=cast("FinishReason", library.FINISHED[code]),
                    prefill_tokens=prefilled,
                    prefill_ns=prefill_ns,
                    phases_us=self._phases_us() if self._job.profile else {},
                    trace=self._spans() if self._job.trace else (),
                )
        return self._outcome

    def poll(self, timeout: float) -> Sequence[Token]:
        if self._outcome is not None and not self._kernel:
            return ()
        count = self._library.ml_poll(
            self._kernel, self._ids, self._times, POLLED, max(0, round(timeout * 1e9))
        )
        return [Token(self._ids[i], self._times[i]) for i in range(count)]

    def stop(self) -> None:
        if self._outcome is None:
            self._library.ml_stop(self._kernel)

    def close(self) -> None:
        self.stop()
        while self.outcome is None:
            self.poll(1.0)

    def _finish(self) -> tuple[int, int, int]:
        prefill_ns, prefilled = ctypes.c_int64(), ctypes.c_int32()
        code = self._library.ml_finish(self._kernel, ctypes.byref(prefill_ns), ctypes.byref(prefilled))
        return code, prefill_ns.value, prefilled.value

    def _phases_us(self) -> dict[str, PhaseTime]:
        sums = (ctypes.c_double * (len(PHASES) * len(library.WAITS)))()
        if self._library.ml_profile(self._kernel, sums, len(PHASES)) < 1:
            return {}
        return {
            phase: PhaseTime(*(sums[i * len(library.WAITS) + kind] / 1e3 for kind in range(3)))
            for i, phase in enumerate(PHASES)
        }

    def _spans(self) -> tuple[TraceSpan, ...]:
        count = self._library.ml_spans(self._kernel, None, 0)
        spans = (Span * count)()
        self._library.ml_spans(self._kernel, spans, count)
        return tuple(_trace_span(span) for span in spans)


def _trace_span(span: Span) -> TraceSpan:
    phase = PHASES[span.phase]
    return TraceSpan(
        name=phase if span.layer < 0 else f"{phase} {span.layer}",
        device=span.device,
        track=span.thread,
        start_us=span.start_ns / 1e3,
        duration_us=(span.end_ns - span.start_ns) / 1e3,
        kind=cast("Any", library.WAITS[span.kind]),
    )


def _shape(config: ModelConfig, devices: int, native: DType) -> Shape:
    lanes = config.lanes
    shards = lanes.count if lanes.count > 1 else devices
    for what, size in (
        ("lanes", lanes.count if lanes.count > 1 else devices),
        ("query heads", config.heads),
        ("KV heads", config.kv_heads),
        ("MLP columns", config.ffn),
    ):
        if size % devices or (lanes.count == 1 and size % shards):
            raise BackendUnavailable(
                f"devices is {devices}; the {size} {what} of {config.name} do not split over so many"
            )
    layers = range(config.layers)
    if lanes.count > 1:
        attention = [_exchange(lanes.attention_exchange(i).value, lanes.delay) for i in layers]
        mlp = [_exchange(lanes.mlp_exchange(i).value, lanes.delay) for i in layers]
    else:
        attention = mlp = [library.EXCHANGES["present" if shards > 1 else "none"] for _ in layers]
    ints = ctypes.c_int32 * config.layers
    frequencies = inverse_frequencies(config.rope, config.head_dim)
    return Shape(
        hidden=config.hidden,
        layers=config.layers,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        ffn=config.ffn,
        vocab=config.vocab,
        context=config.context,
        streams=lanes.count,
        shards=shards,
        delay=lanes.delay if lanes.count > 1 else 0,
        head=library.HEADS[lanes.head.value] if lanes.count > 1 else library.HEADS["replicate"],
        sum_before_norm=lanes.sum_before_norm,
        tied_head=config.tied_head,
        rope_interleaved=config.rope.layout is RopeLayout.INTERLEAVED,
        bfloat16=native == "bf16",
        norm_eps=config.norm_eps,
        windows=ints(*config.windows),
        attention_exchanges=ints(*attention),
        mlp_exchanges=ints(*mlp),
        inverse_frequencies=(ctypes.c_double * len(frequencies))(*frequencies),
    )


def _link(latency_us: float) -> str:
    """What joins virtual devices."""
    return f"a link of {latency_us:g} us" if latency_us else "shared memory"


def _exchange(name: str, delay: int) -> int:
    """With a delay of 0 layers, the past is the present."""
    return library.EXCHANGES["present" if name == "past" and delay == 0 else name]


def _bits(weights: Weights, name: str) -> NDArray[np.uint16]:
    """A matrix as 16-bit patterns: bfloat16 where the checkpoint is, else float16."""
    return weights.get(name, "bf16" if weights.native == "bf16" else "f16").view(np.uint16)


def _split_rows(matrix: NDArray[np.uint16], parts: int) -> NDArray[np.uint16]:
    """[1, rows, cols] to [parts, rows / parts, cols]."""
    return matrix.reshape(parts, -1, matrix.shape[-1])


def _split_columns(matrix: NDArray[np.uint16], parts: int) -> NDArray[np.uint16]:
    """[1, rows, cols] to [parts, rows, cols / parts]."""
    return np.stack(np.split(matrix[0], parts, axis=1))


def default_threads(devices: int) -> int:
    """The cores that this process may use, dealt to the devices; at least one each."""
    return max(1, usable_cores() // devices)


def _sampling_fields(sampling: SamplingParams) -> dict[str, float]:
    """What the kernel takes. Raises RequestError for an option that it has not."""
    known = {name for name, *_ in NativeJob._fields_}
    missing = [o.name for o in OPTIONS if o.name not in known and getattr(sampling, o.name) != o.default]
    if sampling.logit_bias:
        missing.append("logit_bias")
    if missing:
        raise RequestError(f"the backend cpu has no {missing[0]}: leave it out")
    return {o.name: getattr(sampling, o.name) for o in OPTIONS if o.name in known}

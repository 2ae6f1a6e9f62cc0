"""The numpy backend: the reference forward pass behind the same protocol as the kernels.

A thread takes the place of the device: it runs the requests in flight while the callers poll. NumPy lets go
of the interpreter lock inside its matrix products, so that the callers' threads stay responsive.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from engine.backends.base import (
    DeviceInfo,
    Job,
    Loaded,
    OnStep,
    Topology,
    check_job,
    check_sequence,
    ignore_step,
)
from engine.backends.host_room import require_memory
from engine.backends.numpy_launch import PREFILL_CHUNK, NumpyLaunch
from engine.backends.prefix_cache import (
    OPTION,
    KeptSequence,
    Match,
    PrefixCache,
    PrefixCacheUse,
    budget_of,
)
from engine.backends.running import drain
from engine.errors import BackendFailure, BackendUnavailable, RequestError
from engine.kv_cache import OPTION as CACHE
from engine.kv_cache import CacheFormat, KeysAndValues, format_of
from engine.measuring.bandwidth import datasheet_gbs, measure_read_gbs, usable_cores
from engine.models.config import ModelConfig, tensor_shapes
from engine.processor import allowed_memory_bytes, processor_name
from engine.progress import OnProgress, Progress, ignore_progress
from engine.reference import Cache, Reference
from engine.settings import MOST_ROWS
from engine.whole_numbers import is_whole

DEFAULT_CACHE_MIB = 1024
"""For the keys and values of recent sequences, unless an option says otherwise."""
_LEAST_CAPACITY = 256


def available() -> tuple[bool, str]:
    return True, f"NumPy {np.__version__} runs the reference in FP32"


def describe() -> str:
    return available()[1]


def storages(_model: Loaded) -> Callable[[str], None]:
    return lambda _name: None


def read_gbs() -> tuple[float, str]:
    return measure_read_gbs(), "measured now"


def memory_bytes() -> int | None:
    return allowed_memory_bytes()


def open(
    model: Loaded, *, devices: int, options: Mapping[str, Any], progress: OnProgress = ignore_progress
) -> NumpyBackend:
    """Options: threads, rows, cache, prefix_cache_mib.

    Raises BackendUnavailable for another, or a second device, DoesNotFit if the weights do not fit into
    memory.
    """
    progress(Progress(1, 1, "model", "taking the weights as they are"))
    if devices != 1:
        raise BackendUnavailable(
            f"devices is {devices}; the backend numpy has 1, virtual devices come with the backend cpu"
        )
    for name in options:
        if name not in (known := ("threads", "rows", CACHE, OPTION)):
            raise BackendUnavailable(f"the backend numpy has no option {name!r}; it takes {', '.join(known)}")
    threads = options.get("threads", max(1, usable_cores() - 1))
    if not is_whole(threads, 1):
        raise BackendUnavailable(f"threads is {threads!r}; it must be a whole number, 1 or more")
    rows = options.get("rows", 1)
    if not is_whole(rows, 1, MOST_ROWS):
        raise BackendUnavailable(f"rows is {rows!r}; it must be a whole number from 1 to {MOST_ROWS}")
    return NumpyBackend(model, threads, budget_of(options, DEFAULT_CACHE_MIB), rows, format_of(options))


def _weight_bytes(config: ModelConfig) -> int:
    """In FP32. Experts stay where they are (engine.experts)."""
    return 4 * sum(math.prod(shape) for name, shape in tensor_shapes(config) if ".experts." not in name)


class NumpyBackend:
    """Implements engine.backends.base.Backend.

    By default one core stays free for whoever passes the tokens on. The threads of a matrix product wait
    for each other by spinning, so that without an idle core each product takes a time slice of the system:
    on 2 busy cores SmolLM2 fell to 7 tok/s with 2 threads and to 32 with 1 (docs/decisions/numpy-threads.md).

    The number of threads holds for every matrix product of the process until `close`. Requests in flight take
    turns, a token or a piece of a prompt each: what becomes of one must not depend on those beside it, and
    a library's product with several vectors is another one than with each.
    """

    name = "numpy"

    def __init__(
        self,
        model: Loaded,
        threads: int = 1,
        cache_bytes: int = DEFAULT_CACHE_MIB << 20,
        rows: int = 1,
        cache: CacheFormat = CacheFormat.FP16,
    ) -> None:
        self.config = model.config
        require_memory(self.config, _weight_bytes(self.config), self.name)
        self.rows = rows
        processor = processor_name()
        self.topology = Topology(
            devices=(DeviceInfo(processor, datasheet_gbs(processor)),), lanes=model.config.lanes.count
        )
        self.facts: dict[str, Any] = {"threads": threads, CACHE: cache.value}
        self._limit = ThreadpoolController().limit(limits=threads, user_api="blas")
        self._reference = Reference(model.weights, cache=cache)
        self._kept: PrefixCache[Cache] = PrefixCache(cache_bytes)
        self._in_flight: list[NumpyLaunch] = []
        """In the order in which they came."""
        self._thread: threading.Thread | None = None
        """While there is something in flight."""
        self._lock = threading.Lock()

    def storage(self, name: str) -> None:  # noqa: ARG002 (all are alike)
        return None

    @property
    def prefix_cache(self) -> PrefixCacheUse:
        return self._kept.use

    def settle(self) -> None:
        """A launch's end leaves nothing to do."""

    def kept_sequences(self) -> list[KeptSequence]:
        return self._kept.sequences

    def state(self) -> dict[str, Any]:
        return {}

    def launch(self, job: Job) -> NumpyLaunch:
        check_job(self.config, job)
        with self._lock:
            running = [launch for launch in self._in_flight if not launch.ended]
            if any(job.is_measured or launch.job.is_measured for launch in running):
                raise RequestError("what is measured runs alone; close the launches in flight first")
            if len(running) == self.rows:
                many = "one launch" if self.rows == 1 else f"{self.rows} launches"
                raise RequestError(f"the backend numpy runs {many} at a time; close the other one first")
            launch = self._begin(job)
            self._in_flight.append(launch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="numpy-launch", daemon=True)
                self._thread.start()
            return launch

    def _begin(self, job: Job) -> NumpyLaunch:
        """With a cache for all that the job may fill, and as much of the prompt in it as is kept."""
        needed = min(len(job.tokens) + job.max_tokens, self.config.context)
        capacity = max(_LEAST_CAPACITY, 1 << (needed - 1).bit_length())
        capacity = max(
            needed, min(capacity, self.config.context)
        )  # a power of two: a growing one is seldom copied
        position = self._reference.position_bytes
        size = needed * position
        match = self._kept.reserve(job.cache_salt, job.tokens, len(job.tokens) * position, size)

        def end(tokens: Sequence[int], cache: Cache) -> None:
            with self._lock:
                self._kept.give_back(size)
                self._kept.keep(job.cache_salt, tokens, cache, cache.filled_bytes)

        try:
            cache = self._lend(match, needed, capacity)
        except MemoryError as error:
            self._kept.give_back(size)
            raise BackendFailure(f"the backend numpy failed: {error}") from error
        return NumpyLaunch(self._reference, job, cache, end)

    def _lend(self, match: Match[Cache] | None, needed: int, capacity: int) -> Cache:
        if match is None:
            return self._reference.new_cache(capacity)
        if match.copies or match.value.capacity < needed:
            return self._reference.copy_cache(match.value, match.length, capacity)
        match.value.length = match.length
        return match.value

    def _run(self) -> None:
        """The device: until nothing is in flight, a token of each request, and one piece of one prompt."""
        while True:
            with self._lock:
                self._in_flight = [launch for launch in self._in_flight if not launch.ended]
                if not self._in_flight:
                    self._thread = None
                    return
                launches = list(self._in_flight)
            reader = next((launch for launch in launches if launch.reads), None)
            if reader is not None and reader.waits:
                self._share_prompt(reader, launches)
            for launch in launches:
                if launch is reader or not launch.reads:
                    launch.step()

    def _share_prompt(self, reader: NumpyLaunch, launches: Sequence[NumpyLaunch]) -> None:
        """Several answers to one prompt: it is read once."""
        for source in launches:
            if length := source.read_for(reader):
                with suppress(MemoryError):  # then it reads for itself
                    reader.take_prompt(source, length)
                return

    def logits(
        self, tokens: Sequence[int], scored_from: int = 0, on_step: OnStep = ignore_step
    ) -> NDArray[np.float32]:
        """As engine.backends.base.Backend says; beside launches in flight."""
        return self._score(tokens, scored_from, on_step)[0]

    def logits_and_cache(
        self, tokens: Sequence[int], scored_from: int = 0
    ) -> tuple[NDArray[np.float32], KeysAndValues]:
        logits, cache = self._score(tokens, scored_from)
        return logits, cache.content()

    def _score(
        self, tokens: Sequence[int], scored_from: int, on_step: OnStep = ignore_step
    ) -> tuple[NDArray[np.float32], Cache]:
        check_sequence(self.config, tokens, scored_from)
        cache = self._reference.new_cache(len(tokens))
        out = np.empty((len(tokens) - scored_from, self.config.vocab), np.float32)
        for start in range(0, len(tokens), PREFILL_CHUNK):
            on_step()
            chunk = tokens[start : start + PREFILL_CHUNK]
            rows = self._reference.forward(chunk, cache, scored_from=scored_from - start)
            end = max(0, start + len(chunk) - scored_from)
            out[end - len(rows) : end] = rows
        return out, cache

    def tokens_and_cache(self, job: Job) -> tuple[list[int], KeysAndValues]:
        launch = self.launch(job)
        tokens = [token.id for token in drain(launch)]
        return tokens, launch.kept()

    def measure_bandwidth(self) -> tuple[float, ...]:
        """GB/s read from memory, with one thread a core."""
        return (measure_read_gbs(),)

    def close(self) -> None:
        with self._lock:
            launches = list(self._in_flight)
        for launch in launches:
            launch.close()
        self._limit.restore_original_limits()

"""One run: everything prepared, then everybody's turns, then our points by the protocol."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.cuda.driver import reachable_devices
from engine.backends.cuda.monokernel import MONOKERNEL, kernel_headers
from engine.backends.cuda.precompile import Source, precompile
from engine.backends.running import complete, follow
from engine.errors import EngineError
from engine.measuring.bench import run_point
from engine.measuring.measurement import Verified
from engine.measuring.point import prompt_tokens
from engine.measuring.verification import verify
from engine.models.catalogue import Model
from engine.progress import ignore_progress
from engine.timings import decode_speed
from tools.bench_node.run import FromCache
from tools.bench_peers.gguf import precision, write_gguf
from tools.bench_peers.llama_bench import LlamaBench
from tools.bench_peers.peer import Facts, Peer, PeerProcess, PeerUnavailable, Reader
from tools.bench_peers.plan import LLAMA, MEGAKERNELS, TORCH, Order, Target
from tools.bench_peers.results import OURS, Results, Turns
from tools.bench_peers.sources import built_llama_bench, built_megakernels, code_of

Say = Callable[[str], None]
P = TypeVar("P", bound=Peer)
R = TypeVar("R")
_WAIT_S = 0.1


class PeersRun:
    """Does what an order asks. A peer that cannot be had is told, kept in `not_run`, and stops nothing."""

    def __init__(self, order: Order, results: Results, work: Path, say: Say) -> None:
        self.order, self.results = order, results
        self.not_run: dict[str, str] = {}
        self.seconds: dict[str, float] = {}
        self._work, self._say = work, say
        self._begun = time.monotonic()
        self._peers: dict[Target, list[Peer]] = {target: [] for target in order.targets}

    def run(self) -> None:
        """Raises EngineError if not even our own backend opens."""
        self._work.mkdir(parents=True, exist_ok=True)
        models = {target: target.model for target in self.order.targets}
        opened: dict[Target, Backend] = {}
        try:
            with ThreadPoolExecutor(max_workers=4 + len(models)) as pool:
                files = _Files(self.order, self._work, pool)
                with self._stage("PyTorch prepares, compilers run beside it"):
                    self._open_torch()
                    files.wait()
            with self._stage("peers and models open"):
                self._open_others(files)
                opened = {target: self._open(model) for target, model in models.items()}
            for target, backend in opened.items():
                with self._stage(f"turns of {target.preset}"):
                    self._take_turns(target, models[target], backend)
                with self._stage(f"prompts of {target.preset}"):
                    self._take_prompts(target, models[target], backend)
            for peers in self._peers.values():
                _close(peers)
            for target, backend in opened.items():
                with self._stage(f"points of {target.preset}"):
                    self._measure_points(target, models[target], backend)
        finally:
            for peers in self._peers.values():
                _close(peers)
            for backend in opened.values():
                backend.close()

    def _open(self, model: Model) -> Backend:
        opened = open_backend(self.order.backend, model, devices=1, options=self.order.options)
        return opened if self.order.on_gpu else cast("Backend", FromCache(opened))

    def _open_torch(self) -> None:
        """All at once; each tunes its kernels with the GPU to itself."""
        started = {}
        for target in self._targets_of(TORCH):
            with self._caught(f"{TORCH}, {target.preset}"):
                flags = ["--alone", str(self._work / "tuning.lock")]
                flags += [] if self.order.on_gpu else ["--device", "cpu"]
                started[target] = self._start("torch_decode", target, flags, _torch())
        for target, peer in started.items():
            with self._caught(f"{TORCH}, {target.preset}"):
                self._add(target, peer.wait())

    def _open_others(self, files: _Files) -> None:
        for target in self._targets_of(LLAMA):
            with self._caught(f"{LLAMA}, {target.preset}"):
                binary, source = files.llama_bench.result()
                model = files.gguf[target].result()
                shape = target.shape(self.order.tokens)
                name = reachable_devices(1)[0].name if self.order.on_gpu else ""
                numbers = precision(target.plain_weights())
                self._add(target, LlamaBench(binary, model, shape, source, numbers, gpu_name=name))
        for target in self._targets_of(MEGAKERNELS):
            with self._caught(f"{MEGAKERNELS}, {target.preset}"):
                code, module, source = files.megakernels.result()
                flags = ["--repository", str(code), "--module", str(module), "--work", str(self._work)]
                self._add(target, self._start("megakernels", target, flags, source).wait())

    def _targets_of(self, peer: str) -> Iterator[Target]:
        """The models that a peer can run; the limit of the run is told as its reason."""
        for target in self.order.targets:
            if not self.order.wanted(peer, target):
                continue
            if self._elapsed_s > self.order.limit_s:
                self._not_run(f"{peer}, {target.preset}", self._over)
                continue
            yield target

    def _start(self, driver: str, target: Target, flags: Sequence[str], source: str) -> PeerProcess:
        shape = json.dumps(asdict(target.shape(self.order.tokens)))
        log = self._work / f"{driver}-{target.preset}.log"
        return PeerProcess(f"{__package__}.{driver}", [shape, *flags], source, log)

    def _add(self, target: Target, peer: Peer) -> None:
        self._peers[target].append(peer)
        self._say(f"{peer.facts.name}, {target.preset}: ready ({self._elapsed_s:.0f} s)")

    def _take_turns(self, target: Target, model: Model, backend: Backend) -> None:
        """Ours and the peers, every other turn in reverse. A peer that breaks down has no further turns."""
        if not self.order.tokens:
            return
        ours = _Ours(backend, model, target.contexts[0], self.order.tokens)
        ours.measure(2)  # untimed: the first launches are slower
        found = self._turns_of([ours, *self._peers[target]], target.preset, lambda peer: peer.measure)
        name, context, tokens = model.config.name, target.contexts[0], self.order.tokens
        self.results.add_turns(
            [Turns(name, context, tokens, peer.facts, peer.source, turns) for peer, turns in found.items()]
        )

    def _take_prompts(self, target: Target, model: Model, backend: Backend) -> None:
        """The same for prompts, of those who can be asked for them."""
        readers = [peer for peer in self._peers[target] if isinstance(peer, Reader)]
        lengths = self.order.prompts if readers else ()
        if not lengths:
            return
        ours = _Ours(backend, model, target.contexts[0], self.order.tokens)
        ours.read(lengths, 1)  # untimed
        found = self._turns_of(
            [ours, *readers], f"{target.preset}, prompts", lambda reader: partial(reader.read, lengths)
        )
        name = model.config.name
        for k, length in enumerate(lengths):
            self.results.add_turns(
                [
                    Turns(name, length, 0, reader.facts, reader.source, [turn[k] for turn in turns])
                    for reader, turns in found.items()
                ]
            )

    def _turns_of(
        self, peers: Sequence[P], what: str, measure: Callable[[P], Callable[[int], R]]
    ) -> dict[P, list[R]]:
        """What `measure` of each peer gives for so many repeats, a turn after the other."""
        found: dict[P, list[R]] = {peer: [] for peer in peers}
        for turn in range(self.order.turns):
            for peer in list(found) if turn % 2 == 0 else list(reversed(found)):
                with self._caught(f"{peer.facts.name}, {what}"):
                    try:
                        found[peer].append(measure(peer)(self.order.repeats))
                    except EngineError:
                        del found[peer]
                        raise
        return found

    def _measure_points(self, target: Target, model: Model, backend: Backend) -> None:
        known: dict[tuple[tuple[int, ...], tuple[int, ...]], Verified] = {}

        def verify_once(prompt: Sequence[int], tokens: Sequence[int]) -> Verified:
            """The sampled point's greedy run says what the greedy point's said: once is enough."""
            key = tuple(prompt), tuple(tokens)
            if key not in known:
                known[key] = verify(backend, model, prompt, tokens)
            return known[key]

        for point in self.order.points(target) if self.order.tokens else ():
            what = f"{target.preset}, context {point.context}"
            if self._elapsed_s > self.order.limit_s:
                self._not_run(what, self._over)
                continue
            with self._caught(what):
                found = run_point(backend, model, point, verifier=verify_once, commit=self.order.commit)
                self.results.add(found)
                self._say(
                    f"{what}: {found.decode.median:,.1f} tok/s, {found.verified.against},"
                    f" {found.verified.logit_rel_err:.1e} ({self._elapsed_s:.0f} s)"
                )

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._begun

    @property
    def _over(self) -> str:
        return f"the limit of {self.order.limit_s:g} s was reached before it"

    def _not_run(self, what: str, why: str) -> None:
        self.not_run[what] = why
        self._say(f"{what}: NOT RUN: {why}")

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        begun = self._elapsed_s
        try:
            yield
        finally:
            self.seconds[name] = self._elapsed_s - begun
            self._say(f"{name}: {self.seconds[name]:.1f} s")
            self.results.write_summary(self.not_run, self.seconds)

    @contextmanager
    def _caught(self, what: str) -> Iterator[None]:
        """A part that fails is told with its error; the others go on."""
        try:
            yield
        except EngineError as error:
            self._not_run(what, str(error))
        except Exception as error:
            traceback.print_exc()
            self._not_run(what, f"{type(error).__name__}: {error}")


class _Files:
    """What compilers and disks take long for, made side by side while PyTorch prepares."""

    def __init__(self, order: Order, work: Path, pool: ThreadPoolExecutor) -> None:
        self._order, self._work = order, work
        self._kernels = pool.submit(self._compile)
        self.llama_bench = pool.submit(self._llama_bench)
        self.megakernels = pool.submit(self._megakernels)
        self.gguf: dict[Target, Future[Path]] = {
            target: pool.submit(self._gguf, target) for target in order.targets if LLAMA in order.peers
        }

    def wait(self) -> None:
        """Raises EngineError if our own kernels do not compile; what fails for a peer waits in its future."""
        self._kernels.result()
        wait([self.llama_bench])
        wait([self.megakernels])
        wait(self.gguf.values())

    def _compile(self) -> None:
        if self._order.on_gpu:
            precompile(kernel_sources(self._order), ignore_progress)

    def _llama_bench(self) -> tuple[Path, str]:
        if LLAMA not in self._order.peers:
            raise PeerUnavailable("not asked for")
        code, source = code_of(self._order.llama_cpp, self._work)
        return built_llama_bench(code, self._work, gpu=self._order.on_gpu), source

    def _megakernels(self) -> tuple[Path, Path, str]:
        if MEGAKERNELS not in self._order.peers:
            raise PeerUnavailable("not asked for")
        code, source = code_of(self._order.megakernels, self._work)
        return code, built_megakernels(code, self._work), source

    def _gguf(self, target: Target) -> Path:
        path = self._work / f"{target.preset}.gguf"
        write_gguf(path, target.plain_weights())
        return path


class _Ours:
    """Implements peer.Reader: our backend, greedily, by its own clock."""

    source = "this repository"

    def __init__(self, backend: Backend, model: Model, context: int, tokens: int) -> None:
        self._backend, self._model = backend, model
        self._job = Job(prompt_tokens(model, context), tokens)
        self.facts = Facts(OURS, backend.topology.devices[0].name)

    def measure(self, repeats: int) -> list[float]:
        return [self._speed() for _ in range(repeats)]

    def read(self, lengths: Sequence[int], repeats: int) -> list[list[float]]:
        jobs = [Job(prompt_tokens(self._model, length), 1) for length in lengths]
        return [[self._prompt_speed(job) for _ in range(repeats)] for job in jobs]

    def _prompt_speed(self, job: Job) -> float:
        """Nothing is kept of a prompt that nobody owns: each launch reads it anew."""
        launch = self._backend.launch(job)
        try:
            outcome = follow(launch, _WAIT_S, lambda _: None)
        finally:
            launch.close()
        return outcome.prefill_tokens * 1e9 / max(1, outcome.prefill_ns)

    def close(self) -> None:
        """Whoever opened the backend closes it."""

    def _speed(self) -> float:
        tokens = complete(self._backend, self._job)
        return decode_speed(len(tokens) - 1, tokens[-1].t_ns - tokens[0].t_ns)


def kernel_sources(order: Order) -> list[Source]:
    """Every kernel that our part of the run needs."""
    device = reachable_devices(1)[0]
    device.activate()
    sms, free = device.attribute("MULTIPROCESSOR_COUNT"), device.free_bytes()
    sources: list[Source] = [("pack.cu", "")]
    for target in order.targets:
        headers = kernel_headers(target.model, 1, sms, order.options, profile=bool(order.tokens), free=free)
        sources += [(MONOKERNEL, header) for header in (headers if order.tokens else headers[:1])]
    return sources


def _torch() -> str:
    try:
        from importlib.metadata import version

        return f"the package torch {version('torch')}; tools/bench_peers/torch_decode.py"
    except ModuleNotFoundError as error:
        raise PeerUnavailable("PyTorch is not installed here: pip install torch") from error


def _close(peers: list[Peer]) -> None:
    while peers:
        peers.pop().close()

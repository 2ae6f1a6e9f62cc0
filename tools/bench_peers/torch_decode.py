"""The driver of PyTorch: batch-1 decode, replayed from a CUDA graph, compiled with Inductor first or not.

A Llama-shaped model with random FP16 weights, one token a step, greedy, all state on the device.

    python -m tools.bench_peers.torch_decode SHAPE [--mode compile|graph] [--device cpu] [--alone FILE]

SHAPE is the JSON of tools.bench_peers.peer.Shape. On a device of the CPU, for dry runs, the step is run as it
stands. Several may be started together with one FILE: they compile side by side, and each tunes its kernels,
by timing them, while it holds the file's lock. Before it is timed its tokens are compared with those of the
step run eagerly.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tools.bench_peers.peer import Facts, Shape, serve

_STEPS = 8
"""Decode steps in one graph: how far the host's replays lie apart."""
_CHECKED = 16


class Step(torch.nn.Module):
    """One decode step that advances its own token and position."""

    embed: torch.Tensor
    head: torch.Tensor
    index: torch.Tensor
    turn: torch.Tensor
    history: torch.Tensor
    token: torch.Tensor
    position: torch.Tensor

    def __init__(self, shape: Shape, device: str) -> None:
        super().__init__()
        self.shape = shape
        rows = -(-(shape.context + shape.tokens + _STEPS) // 64) * 64
        self._half: dict[str, Any] = {"device": device, "dtype": torch.float16}
        torch.manual_seed(0)
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        for i in range(shape.layers):
            self._matrix(f"qkv{i}", q + 2 * kv, shape.hidden)
            self._matrix(f"out{i}", shape.hidden, q)
            self._matrix(f"gate_up{i}", 2 * shape.ffn, shape.hidden)
            self._matrix(f"down{i}", shape.hidden, shape.ffn)
            self._matrix(f"keys{i}", shape.kv_heads, rows, shape.head_dim)
            self._matrix(f"values{i}", shape.kv_heads, rows, shape.head_dim)
            self.register_buffer(f"norms{i}", torch.ones(2, shape.hidden, **self._half))
        self._matrix("head", shape.vocab, shape.hidden)
        self._matrix("embed", shape.vocab, shape.hidden)
        self.register_buffer("index", torch.arange(rows, device=device))
        pairs = torch.arange(shape.head_dim // 2, device=device) * 2 / shape.head_dim
        angle = self.index[:, None] * shape.theta**-pairs
        self.register_buffer("turn", torch.stack((angle.cos(), angle.sin())))
        self.register_buffer("history", torch.zeros(rows, device=device, dtype=torch.long))
        self.register_buffer("token", torch.ones(1, device=device, dtype=torch.long))
        self.register_buffer("position", torch.zeros(1, device=device, dtype=torch.long))

    def _matrix(self, name: str, *sizes: int) -> None:
        self.register_buffer(name, torch.randn(*sizes, **self._half) * sizes[-1] ** -0.5)

    def restart(self) -> None:
        self.token.fill_(1)
        self.position.fill_(self.shape.context)

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.turn[0, self.position], self.turn[1, self.position]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).half()

    def attend(self, i: int, x: torch.Tensor) -> torch.Tensor:
        s = self.shape
        rows = F.linear(x, getattr(self, f"qkv{i}")).view(-1, s.head_dim)
        q, k, v = torch.split(rows, [s.heads, s.kv_heads, s.kv_heads])
        keys, values = getattr(self, f"keys{i}"), getattr(self, f"values{i}")
        keys[:, self.position] = self.rotate(k)[:, None]
        values[:, self.position] = v[:, None]
        scores = self.rotate(q).view(s.kv_heads, -1, s.head_dim) @ keys.mT * s.head_dim**-0.5
        scores = scores.float().masked_fill(self.index > self.position, float("-inf"))
        mixed: torch.Tensor = scores.softmax(-1).half() @ values
        return mixed.view(1, -1)

    def norm(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], scale, self.shape.norm_eps)

    def forward(self) -> None:
        x = self.embed[self.token]
        for i in range(self.shape.layers):
            norms = getattr(self, f"norms{i}")
            x = x + F.linear(self.attend(i, self.norm(x, norms[0])), getattr(self, f"out{i}"))
            gate, up = F.linear(self.norm(x, norms[1]), getattr(self, f"gate_up{i}")).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, getattr(self, f"down{i}"))
        self.token.copy_(F.linear(self.norm(x), self.head).argmax(-1))
        self.history[self.position] = self.token
        self.position.add_(1)


def tuned_alone(lock: Path) -> Callable[[Any, Any], Callable[..., Any]]:
    """A backend for torch.compile: Inductor, whose first run, which tunes the kernels, holds the lock."""

    def backend(graph: Any, inputs: Any) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        compiled: Any = compile_fx(graph, inputs)
        tuned = False

        def run(*arguments: Any) -> Any:
            nonlocal tuned
            if tuned:
                return compiled(*arguments)
            with lock.open("a") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                result = compiled(*arguments)
                torch.cuda.synchronize()
            tuned = True
            return result

        return run

    return backend


def stepper(model: Step, mode: str, device: str, lock: Path) -> Callable[[], None]:
    """A call that does _STEPS steps."""

    def eager() -> None:
        for _ in range(_STEPS):
            step()

    step: Callable[[], None] = model.forward
    if device == "cpu":
        return eager
    if mode == "compile":
        import torch._inductor.config as inductor

        inductor.coordinate_descent_tuning = True
        step = torch.compile(model.forward, fullgraph=True, dynamic=False, backend=tuned_alone(lock))
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        eager()
    return graph.replay


def decode(model: Step, steps: Callable[[], None], tokens: int) -> None:
    model.restart()
    for _ in range(tokens // _STEPS):
        steps()


def seconds(work: Callable[[], None], device: str) -> float:
    """By the device's events, or by the host's clock where there are none."""
    if device == "cpu":
        begin_s = time.perf_counter()
        work()
        return time.perf_counter() - begin_s
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3


def equal_tokens(model: Step, steps: Callable[[], None]) -> int:
    """How many of the first _CHECKED tokens equal those of the step run eagerly, before any that differs."""
    histories = []
    for work in (model.forward, steps):
        model.restart()
        for _ in range(_CHECKED if work == model.forward else _CHECKED // _STEPS):
            work()
        begin = model.shape.context
        histories.append(model.history[begin : begin + _CHECKED].tolist())
    pairs = enumerate(zip(*histories, strict=True))
    return next((i for i, (a, b) in pairs if a != b), _CHECKED)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", type=lambda text: Shape(**json.loads(text)))
    parser.add_argument("--mode", choices=("graph", "compile"), default="compile")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--alone", type=Path, metavar="FILE", default=Path(tempfile.gettempdir(), "tuning"))
    args = parser.parse_args()
    if args.device != "cpu" and not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no GPU here")
    shape, device = args.shape, args.device
    begin = time.perf_counter()
    model = Step(shape, device)
    steps = stepper(model, args.mode, device, args.alone)
    checked = equal_tokens(model, steps)
    tokens = shape.tokens - shape.tokens % _STEPS
    for _ in range(2):
        decode(model, steps, tokens)
    name = torch.cuda.get_device_name() if device != "cpu" else "cpu"
    more = {
        "dtype": "float16",
        "tokens": tokens,
        "prepare_s": round(time.perf_counter() - begin, 1),
        "check": f"{checked} of {_CHECKED} tokens are those of the same step run eagerly",
    }

    @torch.no_grad()
    def measure(repeats: int) -> list[float]:
        return [tokens / seconds(lambda: decode(model, steps, tokens), device) for _ in range(repeats)]

    mode = args.mode if device != "cpu" else "eager"
    serve(Facts(f"torch {torch.__version__} {mode}", name, more), measure)


if __name__ == "__main__":
    main()

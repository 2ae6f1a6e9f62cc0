"""Batch-1 decode in plain PyTorch: the peer that the CUDA backend's figures stand beside.

A Llama-shaped model with random FP16 weights, one token a step, greedy, all state on the device. The step
is replayed from a CUDA graph, as PyTorch runs it (`graph`) or compiled with Inductor first (`compile`).
Lanes are not modelled: the same matrices in one lane move the same bytes with fewer dependencies, which
favours this peer.

    python benchmarks/peers/torch_decode.py --model laneformer-2b --context 256 --mode compile
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from engine.config import ModelConfig
from engine.presets import load_preset, preset_names


class Step(torch.nn.Module):
    """One decode step that advances its own token and position."""

    def __init__(self, config: ModelConfig, rows: int) -> None:
        super().__init__()
        self.config, self.layers = config, config.layers
        half = {"device": "cuda", "dtype": torch.float16}

        def weight(name: str, *shape: int) -> None:
            self.register_buffer(name, torch.randn(*shape, **half) * shape[-1] ** -0.5)

        for i in range(config.layers):
            weight(f"qkv{i}", config.q_dim + 2 * config.kv_dim, config.hidden)
            weight(f"out{i}", config.hidden, config.q_dim)
            weight(f"gate_up{i}", 2 * config.ffn, config.hidden)
            weight(f"down{i}", config.hidden, config.ffn)
            weight(f"keys{i}", config.kv_heads, rows, config.head_dim)
            weight(f"values{i}", config.kv_heads, rows, config.head_dim)
            self.register_buffer(f"norms{i}", torch.ones(2, config.hidden, **half))
        weight("head", config.vocab, config.hidden)
        self.register_buffer("embed", torch.randn(config.vocab, config.hidden, **half))
        self.register_buffer("index", torch.arange(rows, device="cuda"))
        pairs = torch.arange(config.head_dim // 2, device="cuda") * 2 / config.head_dim
        angle = self.index[:, None] * config.rope.theta**-pairs
        self.register_buffer("turn", torch.stack((angle.cos(), angle.sin())))
        self.register_buffer("token", torch.ones(1, device="cuda", dtype=torch.long))
        self.register_buffer("position", torch.zeros(1, device="cuda", dtype=torch.long))

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        cosine, sine = self.turn[0, self.position], self.turn[1, self.position]
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cosine - b * sine, b * cosine + a * sine), -1).half()

    def attend(self, i: int, x: torch.Tensor) -> torch.Tensor:
        c = self.config
        rows = F.linear(x, getattr(self, f"qkv{i}")).view(-1, c.head_dim)
        q, k, v = rows.split((c.heads, c.kv_heads, c.kv_heads))
        keys, values = getattr(self, f"keys{i}"), getattr(self, f"values{i}")
        keys[:, self.position] = self.rotate(k)[:, None]
        values[:, self.position] = v[:, None]
        scores = self.rotate(q).view(c.kv_heads, -1, c.head_dim) @ keys.mT * c.head_dim**-0.5
        scores = scores.float().masked_fill(self.index > self.position, float("-inf"))
        return (scores.softmax(-1).half() @ values).view(1, -1)

    def forward(self) -> None:
        x = self.embed[self.token]
        for i in range(self.layers):
            norms = getattr(self, f"norms{i}")
            x = x + F.linear(self.attend(i, F.rms_norm(x, x.shape[-1:], norms[0])), getattr(self, f"out{i}"))
            gate, up = F.linear(F.rms_norm(x, x.shape[-1:], norms[1]), getattr(self, f"gate_up{i}")).chunk(
                2, -1
            )
            x = x + F.linear(F.silu(gate) * up, getattr(self, f"down{i}"))
        self.token.copy_(F.linear(F.rms_norm(x, x.shape[-1:]), self.head).argmax(-1))
        self.position.add_(1)


def captured(model: Step, mode: str, steps: int) -> torch.cuda.CUDAGraph:
    step = model.forward
    if mode == "compile":
        import torch._inductor.config as inductor

        inductor.coordinate_descent_tuning = True
        step = torch.compile(model.forward, fullgraph=True, dynamic=False)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    return graph


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=preset_names(), default="llama-3.2-1b")
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--mode", choices=("graph", "compile"), default="compile")
    args = parser.parse_args()
    config = load_preset(args.model).config
    with torch.no_grad():
        model = Step(config, -(-(args.context + args.tokens + 8) // 64) * 64)
        graph = captured(model, args.mode, 8)
        samples = []
        for repeat in range(args.repeats + 2):
            model.position.fill_(args.context)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(args.tokens // 8):
                graph.replay()
            end.record()
            end.synchronize()
            if repeat >= 2:
                samples.append(args.tokens / begin.elapsed_time(end) * 1e3)
    print(json.dumps({
        "peer": f"torch {torch.__version__} {args.mode}", "model": args.model, "context": args.context,
        "device": torch.cuda.get_device_name(), "tok_s": round(statistics.median(samples), 1),
        "samples": [round(s, 1) for s in samples],
    }))  # fmt: skip


if __name__ == "__main__":
    main()

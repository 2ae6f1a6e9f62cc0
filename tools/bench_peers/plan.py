"""What is asked: which models at which contexts, beside which peers, how often."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

from engine.measuring.point import Point
from engine.models.catalogue import Model, open_model
from engine.models.probe import plain
from engine.models.weights import PackedWeights, RandomWeights
from engine.sampling import PLAYGROUND
from tools.bench_peers.peer import Shape

TORCH, LLAMA, MEGAKERNELS = "torch", "llama.cpp", "megakernels"
PEERS = (TORCH, LLAMA, MEGAKERNELS)
MEGAKERNELS_MODEL = "llama-3.2-1b"
"""The one shape that its low-latency demo is written for."""


@dataclass(frozen=True, slots=True)
class Target:
    """A model with random weights; peers run at the first of `contexts`, ours at all of them."""

    preset: str
    contexts: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """NAME:CONTEXT[,CONTEXT...]. Raises ValueError."""
        name, colon, contexts = text.partition(":")
        try:
            found = tuple(int(context) for context in contexts.split(","))
        except ValueError:
            found = ()
        if not (name and colon and found and min(found) > 0):
            raise ValueError(f"{text!r} is not NAME:CONTEXT[,CONTEXT...], such as llama-3.2-1b:32,8192")
        return cls(name, found)

    @property
    def model(self) -> Model:
        return open_model(f"random:{self.preset}")

    def plain_weights(self) -> PackedWeights:
        """What the peers run: the same sizes in one lane, under the model's own name."""
        model = self.model
        lanes = model.config.lanes.count
        weights = model.weights if lanes == 1 else RandomWeights(plain(model.config), 0)
        return cast("PackedWeights", weights)

    def shape(self, tokens: int) -> Shape:
        c = self.model.config
        return Shape(
            c.name, c.hidden, c.layers, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.tied_head,
            c.rope.theta, c.norm_eps, self.contexts[0], tokens,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Order:
    """One run: `turns` of `repeats` decodes of `tokens` for everybody, every other turn in reverse.

    So are prompts of `prompts` tokens, for those who can be asked for them.
    """

    backend: str
    targets: tuple[Target, ...]
    peers: tuple[str, ...]
    tokens: int
    repeats: int
    turns: int
    llama_cpp: str
    megakernels: str
    limit_s: float
    prompts: tuple[int, ...] = ()
    commit: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        return self.backend == "cuda"

    def wanted(self, peer: str, target: Target) -> bool:
        """Whether the peer has anything to run of this model."""
        runs_it = {
            MEGAKERNELS: target.preset == MEGAKERNELS_MODEL,
            TORCH: target.model.config.experts is None,
        }
        return peer in self.peers and runs_it.get(peer, True)

    def points(self, target: Target) -> Iterator[Point]:
        """Ours, by the protocol: greedily at every context, and at the first as the playground draws."""
        for context in target.contexts:
            yield Point(context, self.tokens, self.turns * self.repeats)
        yield Point(target.contexts[0], self.tokens, self.turns * self.repeats, sampling=PLAYGROUND)

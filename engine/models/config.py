"""The shape of a model: every number that the reference, the packers and the kernels specialise on."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.errors import ConfigError


class RopeLayout(StrEnum):
    """Which pairs of a head's elements one rotation turns."""

    HALF = "half"
    """Element j with element j + head_dim/2 (Hugging Face Llama)."""
    INTERLEAVED = "interleaved"
    """Element 2j with element 2j + 1 (Meta's Llama, GGUF, Laneformer)."""


class HeadKind(StrEnum):
    """How the lanes' residual streams become logits."""

    REPLICATE = "replicate"
    """Each lane's stream is normalised, the mean over lanes meets one [vocab, hidden] matrix."""
    VOCAB_PARALLEL = "vocab_parallel"
    """Lane l yields the l-th slice of the vocabulary from its own stream."""
    LANE = "lane"
    """The lanes' normalised streams are concatenated and meet one [vocab, lanes * hidden] matrix."""


class Exchange(StrEnum):
    """What a module of one layer adds to each lane's residual stream."""

    NONE = "none"
    """Its own output alone, times sqrt(lanes) so that the stream keeps its variance."""
    PRESENT = "present"
    """The sum of all lanes' output of this layer."""
    PAST = "past"
    """Its own output, and the other lanes' output of `delay` layers before."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent stretch of the rotary wavelengths."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float = 10000.0
    layout: RopeLayout = RopeLayout.HALF
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Lanes:
    """How a model is cut into lanes (Delayed Tensor Parallelism); the default is a plain transformer.

    `count` lanes each keep a residual stream of full width. From layer `delay` on, a lane adds what the
    other lanes produced `delay` layers earlier. In the layers before that, `early_comm` says whether
    lanes add each other's present output (True) or scale their own by sqrt(count) (False). With
    `attention_comm` or `mlp_comm` off, that kind of module scales its own output by sqrt(count) from
    layer `delay` on too; `early_comm` alone still governs the layers before.
    """

    count: int = 1
    delay: int = 0
    early_comm: bool = True
    attention_comm: bool = True
    mlp_comm: bool = True
    head: HeadKind = HeadKind.REPLICATE
    sum_before_norm: bool = False
    """Only for the replicated head: sum the lanes and normalise once, in place of the mean of norms."""

    def attention_exchange(self, layer: int) -> Exchange:
        return self._exchange(layer, self.attention_comm)

    def mlp_exchange(self, layer: int) -> Exchange:
        return self._exchange(layer, self.mlp_comm)

    def _exchange(self, layer: int, comm: bool) -> Exchange:
        if self.count == 1:
            return Exchange.NONE
        if layer < self.delay:
            return Exchange.PRESENT if self.early_comm else Exchange.NONE
        return Exchange.PAST if comm else Exchange.NONE


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's shape. All sizes count elements; `windows` counts positions.

    `windows[i]` is the sliding window of layer i (position p attends to p - window + 1 .. p), or 0 for
    full attention. Raises ConfigError on construction if the numbers contradict each other.
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    norm_eps: float = 1e-5
    tied_head: bool = False
    rope: Rope = field(default_factory=Rope)
    lanes: Lanes = field(default_factory=Lanes)
    windows: tuple[int, ...] = ()
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.windows:
            object.__setattr__(self, "windows", (0,) * self.layers)
        for problem in _problems(self):
            raise ConfigError(f"model {self.name!r}: {problem}")

    @property
    def q_dim(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_dim(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def queries_per_kv(self) -> int:
        return self.heads // self.kv_heads

    @property
    def parameters(self) -> int:
        """Trainable parameters, the embedding and an untied head included."""
        layer = self.hidden * (2 * self.q_dim + 2 * self.kv_dim + 3 * self.ffn + 2)
        head = 0 if self.tied_head else self.vocab * self.hidden * self.head_copies
        return self.vocab * self.hidden + self.layers * layer + self.hidden + head

    @property
    def head_copies(self) -> int:
        """How many [vocab, hidden] matrices the head holds (the `lane` head is lanes times as wide)."""
        return self.lanes.count if self.lanes.head is HeadKind.LANE else 1

    def attended(self, layer: int, position: int) -> range:
        """The positions that `position` attends to in `layer`, itself included."""
        window = self.windows[layer]
        return range(max(0, position + 1 - window) if window else 0, position + 1)


def _problems(c: ModelConfig) -> list[str]:
    """What contradicts itself in `c`, in words; empty if nothing does."""
    found = [
        f"{name} is {getattr(c, name)}, must be at least 1"
        for name in ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context")
        if getattr(c, name) < 1
    ]
    if found:
        return found
    lanes = c.lanes.count
    if lanes < 1:
        found.append(f"lanes is {lanes}, must be at least 1")
        return found
    if c.heads % c.kv_heads:
        found.append(f"{c.heads} query heads do not share {c.kv_heads} KV heads evenly")
    if c.head_dim % 2:
        found.append(f"head_dim is {c.head_dim}, rotary positions need an even number")
    if len(c.windows) != c.layers:
        found.append(f"{len(c.windows)} windows for {c.layers} layers")
    if any(w < 0 for w in c.windows):
        found.append("a sliding window is negative; 0 means full attention")
    for what, size in (("query heads", c.heads), ("KV heads", c.kv_heads), ("MLP columns", c.ffn)):
        if size % lanes:
            found.append(f"{size} {what} do not split over {lanes} lanes")
    if c.lanes.head is HeadKind.VOCAB_PARALLEL and c.vocab % lanes:
        found.append(f"a vocabulary of {c.vocab} does not split over {lanes} lanes")
    if not 0 <= c.lanes.delay <= c.layers:
        found.append(f"delay is {c.lanes.delay} layers, allowed are 0 to {c.layers}")
    if c.lanes.sum_before_norm and c.lanes.head is not HeadKind.REPLICATE:
        found.append(
            f"lanes are summed before the norm only for a replicated head, not {c.lanes.head.value!r}"
        )
    if c.tied_head and c.lanes.head is HeadKind.LANE and lanes > 1:
        found.append("a head over concatenated lanes cannot be tied to the embedding")
    return found

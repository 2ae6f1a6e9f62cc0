"""The shape of a model: every number that the reference, the packers and the kernels specialise on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from engine.errors import ConfigError
from engine.models.rope import Rope

MOST_POSITIONS = 1 << 24
"""The longest context that is taken: more than any published model declares."""


MOST_EXPERTS = 4096
"""Experts of a layer: four times the most of any published model."""


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

    LOCAL = "local"
    """Its own output alone, times sqrt(lanes) so that the stream keeps its variance."""
    SYNC = "sync"
    """The sum of all lanes' output of this layer."""
    DELAYED = "delayed"
    """Its own output, and the other lanes' output of `delay` layers before."""


class Activation(StrEnum):
    """What the MLP's gate goes through before it multiplies the other half."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"
    """GELU in its approximation by tanh."""
    CLAMPED_SWIGLU = "clamped_swiglu"
    """gate * sigmoid(1.702 * gate) * (up + 1), the gate clamped above and the other half on both sides."""


class Feature(StrEnum):
    """Arithmetic beyond a plain Llama's; a backend that lacks one refuses the models that need it."""

    QKV_BIAS = "biases on queries, keys and values"
    QK_NORM = "a norm on each head of queries and keys"
    LAYER_ROTATION = "rotation that differs between layers"
    ROTATION_AMPLITUDE = "rotation with an amplitude (YaRN, longrope)"
    POST_NORMS = "norms after attention and MLP"
    GELU = "GELU in the MLP"
    EMBEDDING_SCALE = "a scaled embedding"
    ATTENTION_SCALE = "a scale of attention scores of its own"
    ATTENTION_CAP = "soft-capped attention scores"
    LOGIT_CAP = "soft-capped logits"
    OUT_BIAS = "a bias on attention's output"
    SINKS = "attention sinks"
    CLAMPED_SWIGLU = "a clamped SwiGLU in the MLP"
    EXPERTS = "a mixture of experts"


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
            return Exchange.LOCAL
        if layer < self.delay:
            return Exchange.SYNC if self.early_comm else Exchange.LOCAL
        return Exchange.DELAYED if comm else Exchange.LOCAL


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP of every layer (engine.experts says how a token is routed).

    Each of `count` experts is an MLP with `ModelConfig.ffn` columns of its own; a token meets `chosen` of
    them. Their weights are the softmax over the chosen ones' scores if `renormalise`, else over all scores.
    """

    count: int
    chosen: int
    renormalise: bool = True
    biased: bool = False
    """The router and both halves and the output of each expert have a bias."""


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
    qkv_bias: bool = False
    """A bias is added to queries, keys and values."""
    qk_norm: bool = False
    """Each head of queries and keys is RMS-normalised, with one scale [head_dim] for all, then rotated."""
    layer_ropes: tuple[Rope | None, ...] = ()
    """The rotation of each layer where they differ, None for a layer without; () means `rope` everywhere."""
    post_norms: bool = False
    """The output of attention and of the MLP is RMS-normalised before it joins the residual stream."""
    activation: Activation = Activation.SILU
    embedding_scale: float = 1.0
    """What embedding rows are multiplied by before the first layer."""
    attention_scale: float = 0.0
    """What scores are multiplied by; 0 means 1 / sqrt(head_dim)."""
    attention_cap: float = 0.0
    """Scores become cap * tanh(score / cap) before the softmax; 0 means no cap."""
    logit_cap: float = 0.0
    """The same for logits."""
    out_bias: bool = False
    """A bias is added to what attention adds to the residual stream."""
    sinks: bool = False
    """Each query head has one learnt score more in its softmax, whose probability goes nowhere."""
    swiglu_limit: float = 0.0
    """Where the clamped SwiGLU clamps; 0 for other activations."""
    experts: Experts | None = None
    """The experts of each layer, `ffn` columns each; None for a dense MLP."""
    family: str = "llama"
    """The module of engine.models.families that reads and writes this model's files."""
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
        return self._parameters(self.experts.count if self.experts else 0)

    @property
    def active_parameters(self) -> int:
        """Those that one token meets: of the embedding its row, unless the head is tied to it, and of the
        experts those that it chooses."""
        met = self._parameters(self.experts.chosen if self.experts else 0)
        return met if self.tied_head else met - (self.vocab - 1) * self.hidden

    def _parameters(self, experts: int) -> int:
        """With so many experts in each layer."""
        layer = _elements(_layer_shapes(self)) + experts * _elements(_expert_shapes(self))
        return _elements(_top_shapes(self)) + self.layers * layer

    @property
    def head_copies(self) -> int:
        """How many [vocab, hidden] matrices the head holds (the `lane` head is lanes times as wide)."""
        return self.lanes.count if self.lanes.head is HeadKind.LANE else 1

    @property
    def features(self) -> frozenset[Feature]:
        """What a backend must be able to do beyond a plain Llama to run this model."""
        ropes = {self.rope_of(i) for i in range(self.layers)}
        switched = {
            Feature.QKV_BIAS: self.qkv_bias,
            Feature.QK_NORM: self.qk_norm,
            Feature.LAYER_ROTATION: ropes != {self.rope},
            Feature.ROTATION_AMPLITUDE: any(rope.amplitude != 1.0 for rope in ropes if rope),
            Feature.POST_NORMS: self.post_norms,
            Feature.GELU: self.activation is Activation.GELU_TANH,
            Feature.EMBEDDING_SCALE: self.embedding_scale != 1.0,
            Feature.ATTENTION_SCALE: self.attention_scale != 0.0,
            Feature.ATTENTION_CAP: self.attention_cap != 0.0,
            Feature.LOGIT_CAP: self.logit_cap != 0.0,
            Feature.OUT_BIAS: self.out_bias,
            Feature.SINKS: self.sinks,
            Feature.CLAMPED_SWIGLU: self.activation is Activation.CLAMPED_SWIGLU,
            Feature.EXPERTS: self.experts is not None,
        }
        return frozenset(feature for feature, on in switched.items() if on)

    def rope_of(self, layer: int) -> Rope | None:
        """The rotation of queries and keys in `layer`; None if they are not rotated there."""
        return self.layer_ropes[layer] if self.layer_ropes else self.rope

    def attended_positions(self, layer: int, position: int) -> range:
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
    if c.context > MOST_POSITIONS:
        found.append(f"context is {c.context}, must be at most {MOST_POSITIONS}")
    if not (math.isfinite(c.norm_eps) and c.norm_eps > 0):
        found.append(f"norm_eps is {c.norm_eps}, must be above 0")
    found += _rope_problems(c)
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
    return found + _mlp_problems(c)


def _mlp_problems(c: ModelConfig) -> list[str]:
    found = []
    if (c.activation is Activation.CLAMPED_SWIGLU) != (c.swiglu_limit > 0):
        found.append(f"swiglu_limit is {c.swiglu_limit}; it is above 0 for a clamped SwiGLU, and only then")
    if c.lanes.count > 1 and (c.experts or c.out_bias):
        found.append(f"experts and a bias on attention's output need one lane, there are {c.lanes.count}")
    if c.experts and not 1 <= c.experts.chosen <= c.experts.count:
        found.append(f"a token chooses {c.experts.chosen} of {c.experts.count} experts")
    if c.experts and c.experts.count > MOST_EXPERTS:
        found.append(f"a layer has {c.experts.count} experts, at most {MOST_EXPERTS} are taken")
    return found


def _rope_problems(c: ModelConfig) -> list[str]:
    found = []
    if len(c.layer_ropes) not in (0, c.layers):
        found.append(f"{len(c.layer_ropes)} rotations for {c.layers} layers")
    for rope in {c.rope, *(r for r in c.layer_ropes if r)}:
        if not (math.isfinite(rope.theta) and rope.theta > 0):
            found.append(f"the rotation's base is {rope.theta}, must be above 0")
        if not 0 <= rope.turning <= c.head_dim // 2:
            found.append(f"{rope.turning} pairs turn of a head's {c.head_dim // 2}")
        if rope.layout is not c.rope.layout:
            found.append("layers differ in which elements of a head make a pair")
    return found


def tensor_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every canonical name of a model (engine.models.weights) and its shape, in file order."""
    (embed, norm, *head) = _top_shapes(config)
    yield embed
    for i in range(config.layers):
        for name, shape in _layer_shapes(config):
            yield f"layers.{i}.{name}", shape
        for expert in range(config.experts.count if config.experts else 0):
            for name, shape in _expert_shapes(config):
                yield f"layers.{i}.experts.{expert}.{name}", shape
    yield norm
    yield from head


Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for _, shape in shapes)


def _top_shapes(config: ModelConfig) -> Shapes:
    yield "embed", (config.vocab, config.hidden)
    yield "norm", (config.hidden,)
    if not config.tied_head:
        yield "head", (config.vocab, config.head_copies * config.hidden)


def is_matrix(name: str) -> bool:
    """Whether a tensor of that canonical name is multiplied with: no norm, no bias, no sinks."""
    kind = name.rsplit(".", 1)[-1]
    return kind in ("embed", "head", "router") or kind.startswith("w")


def matrix_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Of `tensor_shapes`, the matrices."""
    return {name: shape for name, shape in tensor_shapes(config) if is_matrix(name)}


def _layer_shapes(config: ModelConfig) -> Shapes:
    """What every layer has once; experts come beside it."""
    yield from _attention_shapes(config)
    yield "ffn_norm", (config.hidden,)
    if config.experts is None:
        yield from _mlp_shapes(config)
    else:
        yield "router", (config.experts.count, config.hidden)
        if config.experts.biased:
            yield "router_bias", (config.experts.count,)
    if config.post_norms:
        yield "ffn_post_norm", (config.hidden,)


def _attention_shapes(config: ModelConfig) -> Shapes:
    lanes, hidden = config.lanes.count, config.hidden
    q, kv = config.q_dim // lanes, config.kv_dim // lanes
    yield "attn_norm", (hidden,)
    yield "wq", (lanes, q, hidden)
    yield "wk", (lanes, kv, hidden)
    yield "wv", (lanes, kv, hidden)
    if config.qkv_bias:
        yield "bq", (lanes, q)
        yield "bk", (lanes, kv)
        yield "bv", (lanes, kv)
    if config.qk_norm:
        yield "q_norm", (config.head_dim,)
        yield "k_norm", (config.head_dim,)
    if config.sinks:
        yield "sinks", (lanes, config.heads // lanes)
    yield "wo", (lanes, hidden, q)
    if config.out_bias:
        yield "bo", (hidden,)
    if config.post_norms:
        yield "attn_post_norm", (hidden,)


def _mlp_shapes(config: ModelConfig) -> Shapes:
    lanes, hidden, ffn = config.lanes.count, config.hidden, config.ffn // config.lanes.count
    yield "w_gate", (lanes, ffn, hidden)
    yield "w_up", (lanes, ffn, hidden)
    yield "w_down", (lanes, hidden, ffn)


def _expert_shapes(config: ModelConfig) -> Shapes:
    """Of one expert."""
    yield from _mlp_shapes(config)
    if config.experts and config.experts.biased:
        yield "b_gate", (config.lanes.count, config.ffn)
        yield "b_up", (config.lanes.count, config.ffn)
        yield "b_down", (config.hidden,)

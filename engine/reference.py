"""The forward pass in NumPy and FP32: what the model is, and what every kernel is compared with.

Notation in the shapes: L lanes, n tokens of this call, D hidden, V vocabulary, H KV heads of one lane,
G query heads for each KV head, E head_dim, T cached positions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.activations import gate_halves
from engine.e4m3 import quantise
from engine.errors import RequestError
from engine.experts import ExpertLayer
from engine.kv_cache import CacheFormat, KeysAndValues, settle
from engine.models.config import Exchange, HeadKind, ModelConfig
from engine.models.rope import Rope, rotate, rotation_table
from engine.models.weights import Weights

Array = NDArray[np.float32]
Mark = Callable[[str, int], None]
"""Called at the end of each phase with its name (engine.timings) and layer (-1 outside layers)."""


class Products(Protocol):
    """The products that take the time: another library may do them, on a GPU for instance."""

    def project(self, x: Array, matrix: Array) -> Array:
        """Each lane's vectors times its own matrix: [L, n, in], [L, out, in] to [L, n, out]."""
        ...

    def attend(
        self,
        q: Array,
        keys: Array,
        values: Array,
        unseen: NDArray[np.bool_] | None,
        cap: float,
        sinks: Array | None = None,
    ) -> Array:
        """Softmax attention of scaled queries [L, H, G, n, E] over keys and values [L, H, T, E].

        `unseen` [n, T]: the keys that a query does not see; None: it sees all. `cap` bounds scores softly;
        0: it does not. `sinks` [L, H, G]: a score more for each head, which takes part in the softmax and
        has no value. Returns [L, H, G, n, E].
        """
        ...


class NumpyProducts:
    """On the cores."""

    def project(self, x: Array, matrix: Array) -> Array:
        product: Array = np.matmul(x, matrix.swapaxes(1, 2))
        return product

    def attend(
        self,
        q: Array,
        keys: Array,
        values: Array,
        unseen: NDArray[np.bool_] | None,
        cap: float,
        sinks: Array | None = None,
    ) -> Array:
        scores: Array = q @ keys[:, :, np.newaxis].swapaxes(-1, -2)
        _soft_cap(scores, cap)
        if unseen is not None:
            np.copyto(scores, np.float32(-np.inf), where=unseen)
        _softmax(scores, None if sinks is None else sinks[..., np.newaxis, np.newaxis])
        mixed: Array = scores @ values[:, :, np.newaxis]
        return mixed


_QUERY_BLOCK = 256
"""Queries whose attention scores are held at a time: bounds them at [heads, block, T]."""


_EXPERTS_AHEAD = 8
"""Of GPT-OSS-20B one takes 0.1 GB in FP32, and some times that while it is widened."""
_FIRST_POSITIONS = 256
"""Positions of the first rotary table; a longer sequence makes a longer one."""


def _no_mark(phase: str, layer: int) -> None:
    pass


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """The two matrices of an MLP that every token meets."""

    gate_up: Array
    """[L, 2*F/L, D]: rows of w_gate, then w_up."""
    down: Array
    """[L, D, F/L]"""


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's matrices, the ones with a common input stacked into one."""

    attn_norm: Array
    """[D]"""
    qkv: Array
    """[L, (H*G + 2*H) * E, D]: rows of wq, then wk, then wv."""
    attn_out: Array
    """[L, D, H*G*E]"""
    ffn_norm: Array
    """[D]"""
    mlp: DenseMlp | ExpertLayer
    qkv_bias: Array | None
    """[L, 1, (H*G + 2*H) * E], in the order of qkv."""
    out_bias: Array | float
    """[D], or 0."""
    sinks: Array | None
    """[L, H, G]"""
    q_norm: Array | None
    """[E]; so is k_norm."""
    k_norm: Array | None
    attn_post_norm: Array | None
    """[D]; so is ffn_post_norm."""
    ffn_post_norm: Array | None


@dataclass(slots=True)
class Cache:
    """Keys and values of one sequence: [layers, L, H, capacity, E]; `length` positions are filled."""

    keys: Array
    values: Array
    length: int = 0
    claims: KeysAndValues | None = None
    """In FP8: what another computation has kept of the sequence (engine.kv_cache.settle)."""

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[3])

    def content(self) -> KeysAndValues:
        """Of the filled positions, the lanes' heads one after another."""
        layers, lanes, heads, _, dim = self.keys.shape
        keys, values = (
            np.ascontiguousarray(kept[..., : self.length, :]).reshape(layers, lanes * heads, self.length, dim)
            for kept in (self.keys, self.values)
        )
        return KeysAndValues(keys, values)

    @property
    def filled_bytes(self) -> int:
        """Of the positions that are filled: memory of the others has never been touched."""
        return (self.keys.nbytes + self.values.nbytes) // self.capacity * self.length


class Reference:
    """A model ready to run. Immutable after construction; each sequence brings its own cache.

    With `stream` it holds one layer's matrices at a time and loads them again in each `forward`: for a
    pass over a whole sequence of a model whose FP32 copy would not fit. `products` may hand the
    products to another library. With `cache` FP8 it rounds keys and values by the rule of engine.kv_cache,
    and else not at all.
    """

    def __init__(
        self,
        weights: Weights,
        *,
        stream: bool = False,
        products: Products | None = None,
        cache: CacheFormat = CacheFormat.FP16,
    ) -> None:
        self.config: ModelConfig = weights.config
        self._rounds = cache is CacheFormat.FP8
        self._products = NumpyProducts() if products is None else products
        self._embed: Array = np.ascontiguousarray(weights.get("embed"))
        self._layers: Iterable[Layer] = (
            StreamedLayers(weights)
            if stream
            else [_load_layer(weights, i) for i in range(self.config.layers)]
        )
        self._norm: Array = weights.get("norm")
        self._head: Array = (
            self._embed if self.config.tied_head else np.ascontiguousarray(weights.get("head"))
        )
        self._tables: dict[Rope, tuple[Array, Array]] = {}

    def new_cache(self, capacity: int, claims: KeysAndValues | None = None) -> Cache:
        """An empty cache for at most `capacity` positions."""
        c = self.config
        lanes = c.lanes.count
        shape = (c.layers, lanes, c.kv_heads // lanes, capacity, c.head_dim)
        return Cache(np.empty(shape, np.float32), np.empty(shape, np.float32), claims=claims)

    @property
    def position_bytes(self) -> int:
        """Of a cache, for each position."""
        return 2 * self.config.layers * self.config.kv_dim * np.dtype(np.float32).itemsize

    def copy_cache(self, cache: Cache, length: int, capacity: int) -> Cache:
        """A cache for `capacity` positions that begins with the first `length` of another one."""
        copy = self.new_cache(capacity)
        copy.keys[..., :length, :] = cache.keys[..., :length, :]
        copy.values[..., :length, :] = cache.values[..., :length, :]
        copy.length = length
        return copy

    def forward(
        self,
        tokens: Sequence[int],
        cache: Cache,
        *,
        scored_from: int = 0,
        mark: Mark = _no_mark,
    ) -> Array:
        """Appends `tokens` to the sequence in `cache`; returns logits after those from `scored_from` on.

        [n - scored_from, V]; of all if that index is below 0, of none if it is n or above.

        Raises RequestError if the cache has no room for them.
        """
        if cache.length + len(tokens) > cache.capacity:
            raise RequestError(
                f"{len(tokens)} tokens after {cache.length} do not fit a cache of {cache.capacity} positions"
            )
        lanes = self.config.lanes
        x = np.repeat(self._embed[np.asarray(tokens)][np.newaxis], lanes.count, axis=0)
        if self.config.embedding_scale != 1.0:
            x *= np.float32(self.config.embedding_scale)
        mark("embed", -1)
        attention_history: deque[Array] = deque(maxlen=lanes.delay + 1)
        mlp_history: deque[Array] = deque(maxlen=lanes.delay + 1)
        for i, layer in enumerate(self._layers):
            q = self._qkv(x, layer, i, cache)
            mark("qkv", i)
            heads = self._attention(q, layer, i, cache)
            mark("attention", i)
            attended = self._products.project(heads, layer.attn_out)
            attended += layer.out_bias
            attention_history.append(self._normalise(attended, layer.attn_post_norm))
            _add_lanes(x, attention_history, lanes.attention_exchange(i))
            mark("attn_out", i)
            mlp_history.append(self._mlp(x, layer, i, mark))
            _add_lanes(x, mlp_history, lanes.mlp_exchange(i))
            mark("down" if isinstance(layer.mlp, DenseMlp) else "experts", i)
        cache.length += len(tokens)
        result = self._logits(x[:, max(0, scored_from) :])
        mark("head", -1)
        return result

    def _qkv(self, x: Array, layer: Layer, index: int, cache: Cache) -> Array:
        """Queries, rotated and scaled, [L, n, H*G, E]; keys and values go to the cache."""
        c = self.config
        lanes, n, _ = x.shape
        groups = c.kv_heads // lanes
        queries = c.heads // lanes
        start, end = cache.length, cache.length + n
        rows = self._products.project(_rms_norm(x, layer.attn_norm, c.norm_eps), layer.qkv)
        if layer.qkv_bias is not None:
            rows += layer.qkv_bias
        rows = rows.reshape(lanes, n, queries + 2 * groups, c.head_dim)
        q, k = rows[:, :, :queries], rows[:, :, queries : queries + groups]
        q[...] = self._normalise(q, layer.q_norm)
        k[...] = self._normalise(k, layer.k_norm)
        rope = c.rope_of(index)
        if rope is not None:
            cos, sin = (table[start:end, np.newaxis] for table in self._rotations(rope, end))
            rotate(rows[:, :, : queries + groups], cos, sin, rope.layout)
        self._keep(cache, index, k.swapaxes(1, 2), rows[:, :, queries + groups :].swapaxes(1, 2))
        q *= np.float32(c.attention_scale or c.head_dim**-0.5)
        return q

    def _keep(self, cache: Cache, index: int, keys: Array, values: Array) -> None:
        """A layer's new ones, [L, H, n, E], in the cache's format."""
        where = (index, slice(None), slice(None), slice(cache.length, cache.length + keys.shape[2]))
        if self._rounds and cache.claims is not None:
            of_lanes = (*cache.keys.shape[:3], -1, self.config.head_dim)
            claims = [claimed.reshape(of_lanes)[where] for claimed in cache.claims]
            keys, values = settle(keys, claims[0]), settle(values, claims[1])
        elif self._rounds:
            keys, values = quantise(keys), quantise(values)
        cache.keys[where], cache.values[where] = keys, values

    def _rotations(self, rope: Rope, positions: int) -> tuple[Array, Array]:
        """Cosines and sines of at least `positions` positions: as many as any sequence has needed so far."""
        if rope not in self._tables or len(self._tables[rope][0]) < positions:
            size = min(self.config.context, max(_FIRST_POSITIONS, 2 * positions))
            self._tables[rope] = rotation_table(rope, self.config.head_dim, size)
        return self._tables[rope]

    def _normalise(self, x: Array, scale: Array | None) -> Array:
        return x if scale is None else _rms_norm(x, scale, self.config.norm_eps)

    def _attention(self, q: Array, layer: Layer, index: int, cache: Cache) -> Array:
        """Softmax attention of each query over the positions it may see, [L, n, H*G*E]."""
        blocks = [
            self._attend(q[:, start : start + _QUERY_BLOCK], layer, index, cache, cache.length + start)
            for start in range(0, q.shape[1], _QUERY_BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)

    def _attend(self, q: Array, layer: Layer, index: int, cache: Cache, start: int) -> Array:
        """The same for queries at the positions from `start` on."""
        c = self.config
        lanes, n, queries, head_dim = q.shape
        end = start + n
        first = c.attended_positions(index, start).start
        keys, values = cache.keys[index, :, :, first:end], cache.values[index, :, :, first:end]
        by_group = q.reshape(lanes, n, c.kv_heads // lanes, -1, head_dim).transpose(0, 2, 3, 1, 4)
        unseen = _unseen(np.arange(start, end), np.arange(first, end), c.windows[index]) if n > 1 else None
        mixed = self._products.attend(by_group, keys, values, unseen, c.attention_cap, layer.sinks)
        together: Array = mixed.transpose(0, 3, 1, 2, 4).reshape(lanes, n, queries * head_dim)
        return together

    def _mlp(self, x: Array, layer: Layer, index: int, mark: Mark) -> Array:
        """What the MLP, or the experts, add to each lane's stream: [L, n, D]. Marks its first phase."""
        c, project = self.config, self._products.project
        normed = _rms_norm(x, layer.ffn_norm, c.norm_eps)
        if isinstance(layer.mlp, ExpertLayer):
            chosen, weights = layer.mlp.route(normed, project)
            mark("router", index)
            out = layer.mlp.mix(normed, chosen, weights, project)
        else:
            gated = gate_halves(project(normed, layer.mlp.gate_up), c.activation, c.swiglu_limit)
            mark("gate_up", index)
            out = project(gated, layer.mlp.down)
        return self._normalise(out, layer.ffn_post_norm)

    def _logits(self, x: Array) -> Array:
        c = self.config
        lanes, n, _ = x.shape
        if c.lanes.head is HeadKind.VOCAB_PARALLEL:
            normed = _rms_norm(x, self._norm, c.norm_eps)
            by_lane = self._products.project(normed, self._head.reshape(lanes, c.vocab // lanes, c.hidden))
            logits: Array = by_lane.swapaxes(0, 1).reshape(n, c.vocab)
        else:
            logits = self._products.project(self._merge(x)[np.newaxis], self._head[np.newaxis])[0]
        _soft_cap(logits, c.logit_cap)
        return logits

    def _merge(self, x: Array) -> Array:
        """The lanes as the one vector a token that meets the head: [n, D], or [n, L*D] side by side."""
        eps = self.config.norm_eps
        if self.config.lanes.sum_before_norm:
            return _rms_norm(x.sum(axis=0), self._norm, eps)
        normed = _rms_norm(x, self._norm, eps)
        if self.config.lanes.head is HeadKind.LANE:
            merged: Array = normed.swapaxes(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])
        else:
            merged = normed.mean(axis=0)
        return merged


class StreamedLayers:
    """A model's layers, each loaded while the one before it is in use, and then forgotten.

    So are experts, which are too many for a layer to hold.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    def __iter__(self) -> Iterator[Layer]:
        with ThreadPoolExecutor(1) as loader:
            ahead = loader.submit(_load_layer, self._weights, 0, _EXPERTS_AHEAD)
            for i in range(1, self._weights.config.layers):
                layer, ahead = ahead.result(), loader.submit(_load_layer, self._weights, i, _EXPERTS_AHEAD)
                yield layer
            yield ahead.result()


def _load_layer(weights: Weights, index: int, experts_ahead: int = 0) -> Layer:
    def get(name: str) -> Array:
        return np.ascontiguousarray(weights.get(f"layers.{index}.{name}"))

    c = weights.config
    biases = [get(name) for name in ("bq", "bk", "bv")] if c.qkv_bias else []
    return Layer(
        attn_norm=get("attn_norm"),
        qkv=np.concatenate([get("wq"), get("wk"), get("wv")], axis=1),
        attn_out=get("wo"),
        ffn_norm=get("ffn_norm"),
        mlp=ExpertLayer(weights, index, ahead=experts_ahead) if c.experts else _load_mlp(get),
        qkv_bias=np.concatenate(biases, axis=1)[:, np.newaxis] if biases else None,
        out_bias=get("bo") if c.out_bias else 0.0,
        sinks=get("sinks").reshape(c.lanes.count, -1, c.queries_per_kv) if c.sinks else None,
        q_norm=get("q_norm") if c.qk_norm else None,
        k_norm=get("k_norm") if c.qk_norm else None,
        attn_post_norm=get("attn_post_norm") if c.post_norms else None,
        ffn_post_norm=get("ffn_post_norm") if c.post_norms else None,
    )


def _load_mlp(get: Callable[[str], Array]) -> DenseMlp:
    return DenseMlp(np.concatenate([get("w_gate"), get("w_up")], axis=1), get("w_down"))


def _rms_norm(x: Array, scale: Array, eps: float) -> Array:
    mean_square = np.vecdot(x, x) / np.float32(x.shape[-1])
    inverse = np.float32(1.0) / np.sqrt(mean_square + np.float32(eps))
    normed: Array = x * inverse[..., np.newaxis]
    normed *= scale
    return normed


def _add_lanes(x: Array, history: deque[Array], how: Exchange) -> None:
    """Adds a module's output to every lane's residual stream x [L, n, D], in place.

    `history` ends with this layer's output and begins with the one `delay` layers before.
    """
    own = history[-1]
    if how is Exchange.SYNC:
        x += own.sum(axis=0)
    elif how is Exchange.LOCAL:
        x += own if len(own) == 1 else own * np.float32(math.sqrt(len(own)))
    else:
        past = history[0]
        x += own
        x += past.sum(axis=0) - past


def _unseen(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """[queries, keys]: positions after the query, or before its sliding window."""
    distance = queries[:, np.newaxis] - keys
    return (distance < 0) | (distance >= window) if window else distance < 0


def _soft_cap(values: Array, cap: float) -> None:
    """cap * tanh(values / cap), in place; nothing if the cap is 0."""
    if cap:
        values /= np.float32(cap)
        np.tanh(values, out=values)
        values *= np.float32(cap)


def _softmax(scores: Array, sinks: Array | None = None) -> None:
    """Over the last axis, in place; a sink [..., 1] adds to the denominator alone."""
    largest = scores.max(axis=-1, keepdims=True)
    if sinks is not None:
        largest = np.maximum(largest, sinks)
    scores -= largest
    np.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    if sinks is not None:
        total += np.exp(sinks - largest)
    scores /= total

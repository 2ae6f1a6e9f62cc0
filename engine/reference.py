"""The forward pass in NumPy and FP32: what the model is, and what every kernel is compared with.

Notation in the shapes: L lanes, n tokens of this call, D hidden, V vocabulary, H KV heads of one lane,
G query heads for each KV head, E head_dim, T cached positions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from engine.errors import RequestError
from engine.models.config import Exchange, HeadKind, ModelConfig
from engine.models.rope import rotate, rotation_table
from engine.models.weights import Weights

Array = NDArray[np.float32]
Mark = Callable[[str, int], None]
"""Called at the end of each phase with its name (backends.base.PHASES) and layer (-1 outside layers)."""


def _no_mark(phase: str, layer: int) -> None:
    pass


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
    gate_up: Array
    """[L, 2*F/L, D]: rows of w_gate, then w_up."""
    down: Array
    """[L, D, F/L]"""


@dataclass(slots=True)
class Cache:
    """Keys and values of one sequence: [layers, L, H, capacity, E]; `length` positions are filled."""

    keys: Array
    values: Array
    length: int = 0

    @property
    def capacity(self) -> int:
        return int(self.keys.shape[3])

    @property
    def filled_bytes(self) -> int:
        """Of the positions that are filled: memory of the others has never been touched."""
        return (self.keys.nbytes + self.values.nbytes) // self.capacity * self.length


class Reference:
    """A model ready to run. Immutable after construction; each sequence brings its own cache."""

    def __init__(self, weights: Weights) -> None:
        self.config: ModelConfig = weights.config
        self._embed: Array = np.ascontiguousarray(weights.get("embed"))
        self._layers = [_load_layer(weights, i) for i in range(self.config.layers)]
        self._norm: Array = weights.get("norm")
        self._head: Array = (
            self._embed if self.config.tied_head else np.ascontiguousarray(weights.get("head"))
        )
        self._cos, self._sin = rotation_table(self.config.rope, self.config.head_dim, self.config.context)

    def new_cache(self, capacity: int) -> Cache:
        """An empty cache for at most `capacity` positions."""
        c = self.config
        lanes = c.lanes.count
        shape = (c.layers, lanes, c.kv_heads // lanes, capacity, c.head_dim)
        return Cache(np.empty(shape, np.float32), np.empty(shape, np.float32))

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
        logits: Literal["all", "last", "none"] = "all",
        mark: Mark = _no_mark,
    ) -> Array:
        """Appends `tokens` to the sequence in `cache` and returns logits, [n, V], [1, V] or [0, V].

        Raises RequestError if the cache has no room for them.
        """
        if cache.length + len(tokens) > cache.capacity:
            raise RequestError(
                f"{len(tokens)} tokens after {cache.length} do not fit a cache of {cache.capacity} positions"
            )
        lanes = self.config.lanes
        x = np.repeat(self._embed[np.asarray(tokens)][np.newaxis], lanes.count, axis=0)
        mark("embed", -1)
        attention_history: deque[Array] = deque(maxlen=lanes.delay + 1)
        mlp_history: deque[Array] = deque(maxlen=lanes.delay + 1)
        for i, layer in enumerate(self._layers):
            q = self._qkv(x, layer, i, cache)
            mark("qkv", i)
            heads = self._attention(q, i, cache)
            mark("attention", i)
            attention_history.append(_project(heads, layer.attn_out))
            _add_lanes(x, attention_history, lanes.attention_exchange(i))
            mark("attn_out", i)
            gated = self._gate_up(x, layer)
            mark("gate_up", i)
            mlp_history.append(_project(gated, layer.down))
            _add_lanes(x, mlp_history, lanes.mlp_exchange(i))
            mark("down", i)
        cache.length += len(tokens)
        wanted = {"all": 0, "last": len(tokens) - 1, "none": len(tokens)}[logits]
        result = self._logits(x[:, wanted:])
        mark("head", -1)
        return result

    def _qkv(self, x: Array, layer: Layer, index: int, cache: Cache) -> Array:
        """Queries, rotated and scaled, [L, n, H*G, E]; keys and values go to the cache."""
        c = self.config
        lanes, n, _ = x.shape
        groups = c.kv_heads // lanes
        queries = c.heads // lanes
        start, end = cache.length, cache.length + n
        rows = _project(_rms_norm(x, layer.attn_norm, c.norm_eps), layer.qkv)
        rows = rows.reshape(lanes, n, queries + 2 * groups, c.head_dim)
        rotate(
            rows[:, :, : queries + groups],
            self._cos[start:end, np.newaxis],
            self._sin[start:end, np.newaxis],
            c.rope.layout,
        )
        cache.keys[index, :, :, start:end] = rows[:, :, queries : queries + groups].swapaxes(1, 2)
        cache.values[index, :, :, start:end] = rows[:, :, queries + groups :].swapaxes(1, 2)
        q = rows[:, :, :queries]
        q *= np.float32(c.head_dim**-0.5)
        return q

    def _attention(self, q: Array, index: int, cache: Cache) -> Array:
        """Softmax attention of each query over the positions it may see, [L, n, H*G*E]."""
        c = self.config
        lanes, n, queries, head_dim = q.shape
        groups = c.kv_heads // lanes
        start, end = cache.length, cache.length + n
        first = c.attended(index, start).start
        keys = cache.keys[index, :, :, np.newaxis, first:end]
        values = cache.values[index, :, :, np.newaxis, first:end]
        by_group = q.reshape(lanes, n, groups, -1, head_dim).transpose(0, 2, 3, 1, 4)
        scores: Array = by_group @ keys.swapaxes(-1, -2)
        if n > 1:
            unseen = _unseen(np.arange(start, end), np.arange(first, end), c.windows[index])
            np.copyto(scores, np.float32(-np.inf), where=unseen)
        _softmax(scores)
        mixed: Array = scores @ values
        together: Array = mixed.transpose(0, 3, 1, 2, 4).reshape(lanes, n, queries * head_dim)
        return together

    def _gate_up(self, x: Array, layer: Layer) -> Array:
        """SwiGLU: silu(gate) * up, [L, n, F/L]."""
        both = _project(_rms_norm(x, layer.ffn_norm, self.config.norm_eps), layer.gate_up)
        half = both.shape[-1] // 2
        gate, up = both[..., :half], both[..., half:]
        with np.errstate(over="ignore"):  # exp(-gate) is inf for a very negative gate: the quotient is 0
            denominator: Array = np.exp(-gate)
        denominator += np.float32(1.0)
        gate /= denominator
        gate *= up
        return gate

    def _logits(self, x: Array) -> Array:
        c = self.config
        lanes, n, _ = x.shape
        if c.lanes.head is HeadKind.VOCAB_PARALLEL:
            normed = _rms_norm(x, self._norm, c.norm_eps)
            by_lane = _project(normed, self._head.reshape(lanes, c.vocab // lanes, c.hidden))
            logits: Array = by_lane.swapaxes(0, 1).reshape(n, c.vocab)
        else:
            logits = _project(self._merged(x)[np.newaxis], self._head[np.newaxis])[0]
        return logits

    def _merged(self, x: Array) -> Array:
        """The lanes as the one vector a token that meets the head: [n, D], or [n, L*D] side by side."""
        eps = self.config.norm_eps
        if self.config.lanes.sum_before_norm:
            return _rms_norm(x.sum(axis=0), self._norm, eps)
        normed = _rms_norm(x, self._norm, eps)
        if self.config.lanes.head is HeadKind.LANE:
            merged: Array = normed.swapaxes(0, 1).reshape(x.shape[1], -1)
        else:
            merged = normed.mean(axis=0)
        return merged


def _load_layer(weights: Weights, index: int) -> Layer:
    def get(name: str) -> Array:
        return np.ascontiguousarray(weights.get(f"layers.{index}.{name}"))

    return Layer(
        attn_norm=get("attn_norm"),
        qkv=np.concatenate([get("wq"), get("wk"), get("wv")], axis=1),
        attn_out=get("wo"),
        ffn_norm=get("ffn_norm"),
        gate_up=np.concatenate([get("w_gate"), get("w_up")], axis=1),
        down=get("w_down"),
    )


def _project(x: Array, matrix: Array) -> Array:
    """Each lane's vectors times its own matrix: [L, n, in], [L, out, in] to [L, n, out]."""
    product: Array = np.matmul(x, matrix.swapaxes(1, 2))
    return product


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
    if how is Exchange.PRESENT:
        x += own.sum(axis=0)
    elif how is Exchange.NONE:
        x += own if len(own) == 1 else own * np.float32(math.sqrt(len(own)))
    else:
        past = history[0]
        x += own
        x += past.sum(axis=0) - past


def _unseen(queries: NDArray[np.int64], keys: NDArray[np.int64], window: int) -> NDArray[np.bool_]:
    """[queries, keys]: positions after the query, or before its sliding window."""
    distance = queries[:, np.newaxis] - keys
    return (distance < 0) | (distance >= window) if window else distance < 0


def _softmax(scores: Array) -> None:
    """Over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)

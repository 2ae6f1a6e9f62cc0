"""Full-size models in PyTorch and FP32 on the GPU, from the same random weights: no cache, no own kernels."""

from __future__ import annotations

import numpy as np
import torch

from engine.models.config import Exchange, HeadKind, ModelConfig, tensor_shapes
from engine.models.rope import RopeLayout, rotation_table
from engine.models.weights import RandomWeights


def random_tensor(weights: RandomWeights, name: str) -> torch.Tensor:
    """engine.models.weights.RandomWeights' recipe, made on the GPU: FP16 values in FP32."""
    shape = dict(tensor_shapes(weights.config))[name]
    key, scale, offset = weights.recipe(name)
    count = int(np.prod(shape))
    out = torch.empty(count, dtype=torch.float32, device="cuda")
    mask = 0xFFFFFFFF
    for start in range(0, count, 1 << 25):
        h = (
            torch.arange(start, min(count, start + (1 << 25)), device="cuda", dtype=torch.int64) + key
        ) & mask
        h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask
        h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask
        h = h ^ (h >> 16)
        unit = (h >> 8).float() * 2.0**-23 - 1.0
        half = (unit * scale + offset).half()
        out[start : start + len(h)] = half.float()
    return out.reshape(shape)


class TorchReference:
    """The rule of models with lanes, written once more: logits of every position of a sequence at once."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        torch.backends.cuda.matmul.allow_tf32 = False
        weights = RandomWeights(config, seed)
        self.config = config
        self.tensors = {name: random_tensor(weights, name) for name, _ in tensor_shapes(config)}
        cosine, sine = rotation_table(config.rope, config.head_dim, min(config.context, 8192))
        self.cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Keys and values of the last sequence, layer by layer: [KV heads, positions, head_dim] each."""
        self.cosine, self.sine = (torch.from_numpy(t).cuda() for t in (cosine, sine))
        self.margins: list[torch.Tensor] = []
        """Of the last sequence, for each layer with experts: how far the last one that a token meets, at each
        position, is ahead of the first one that it does not."""

    @torch.no_grad()
    def logits(self, tokens: list[int], last: int = 1) -> torch.Tensor:
        """Of the last `last` positions: [last, vocab]."""
        c, lanes = self.config, self.config.lanes
        self.cache.clear()
        ids = torch.tensor(tokens, device="cuda")
        x = self.tensors["embed"][ids].expand(lanes.count, -1, -1).clone()
        self.margins = []
        attention_outputs: list[torch.Tensor] = []
        mlp_outputs: list[torch.Tensor] = []
        for i in range(c.layers):
            normed = self._norm(x, f"layers.{i}.attn_norm")
            attention_outputs.append(self._attention(i, normed))
            x = self._exchange(x, attention_outputs, lanes.attention_exchange(i))
            normed = self._norm(x, f"layers.{i}.ffn_norm")
            mlp_outputs.append(self._experts(i, normed) if c.experts else self._mlp(normed, f"layers.{i}."))
            x = self._exchange(x, mlp_outputs, lanes.mlp_exchange(i))
        return self._head(x[:, -last:])

    def _mlp(self, x: torch.Tensor, prefix: str) -> torch.Tensor:
        gate = x @ self.tensors[prefix + "w_gate"].transpose(1, 2)
        up = x @ self.tensors[prefix + "w_up"].transpose(1, 2)
        if self._biased:
            gate, up = gate + self.tensors[prefix + "b_gate"], up + self.tensors[prefix + "b_up"]
        limit = self.config.swiglu_limit
        if limit:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
            gated = gate * torch.sigmoid(1.702 * gate) * (up + 1)
        else:
            gated = torch.nn.functional.silu(gate) * up
        out = gated @ self.tensors[prefix + "w_down"].transpose(1, 2)
        return out + self.tensors[prefix + "b_down"] if self._biased else out

    @property
    def _biased(self) -> bool:
        return self.config.experts is not None and self.config.experts.biased

    def _experts(self, i: int, x: torch.Tensor) -> torch.Tensor:
        experts = self.config.experts
        assert experts is not None
        scores = x[0] @ self.tensors[f"layers.{i}.router"].T
        if experts.biased:
            scores = scores + self.tensors[f"layers.{i}.router_bias"]
        best, order = scores.sort(dim=-1, descending=True, stable=True)
        met = order[:, : experts.chosen]
        counted = best[:, : experts.chosen] if experts.renormalise else best
        weights = counted.softmax(-1)[:, : experts.chosen]
        self.margins.append(best[:, experts.chosen - 1] - best[:, experts.chosen])
        out = torch.zeros_like(x)
        for expert in met.unique().tolist():
            tokens, slots = (met == expert).nonzero(as_tuple=True)
            made = self._mlp(x[:, tokens], f"layers.{i}.experts.{expert}.")
            out[:, tokens] += made * weights[tokens, slots, None]
        return out

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.norm_eps) * self.tensors[name]

    def _attention(self, i: int, x: torch.Tensor) -> torch.Tensor:
        c, lanes, n = self.config, self.config.lanes.count, x.shape[1]

        def heads(name: str, count: int) -> torch.Tensor:
            rows = x @ self.tensors[f"layers.{i}.w{name}"].transpose(1, 2)
            if c.qkv_bias:
                rows += self.tensors[f"layers.{i}.b{name}"][:, None]
            rows = rows.view(lanes, n, count // lanes, c.head_dim)
            return self._norm(rows, f"layers.{i}.{name}_norm") if c.qk_norm and name != "v" else rows

        q, k, v = (
            self._turn(heads("q", c.heads)),
            self._turn(heads("k", c.kv_heads)),
            heads("v", c.kv_heads),
        )
        self.cache.append((k.transpose(1, 2).flatten(0, 1), v.transpose(1, 2).flatten(0, 1)))
        k, v = (t.repeat_interleave(c.queries_per_kv, dim=2) for t in (k, v))
        scores = torch.einsum("lqhd,lkhd->lhqk", q, k) * c.head_dim**-0.5
        distance = torch.arange(n, device="cuda")[:, None] - torch.arange(n, device="cuda")
        window = c.windows[i]
        unseen = (distance < 0) | (
            (distance >= window) if window else torch.zeros_like(distance, dtype=torch.bool)
        )
        scores = scores.masked_fill(unseen, float("-inf"))
        if c.sinks:
            sinks = self.tensors[f"layers.{i}.sinks"].view(lanes, -1, 1, 1).expand(*scores.shape[:3], 1)
            shares = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
        else:
            shares = scores.softmax(-1)
        mixed = torch.einsum("lhqk,lkhd->lqhd", shares, v)
        out = mixed.reshape(lanes, n, -1) @ self.tensors[f"layers.{i}.wo"].transpose(1, 2)
        return out + self.tensors[f"layers.{i}.bo"] if c.out_bias else out

    def _turn(self, x: torch.Tensor) -> torch.Tensor:
        cosine, sine = (t[: x.shape[1], None] for t in (self.cosine, self.sine))
        if self.config.rope.layout is RopeLayout.HALF:
            a, b = x.chunk(2, dim=-1)
            return torch.cat((a * cosine - b * sine, b * cosine + a * sine), dim=-1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=-1).flatten(-2)

    def _exchange(self, x: torch.Tensor, outputs: list[torch.Tensor], how: Exchange) -> torch.Tensor:
        own = outputs[-1]
        if how is Exchange.SYNC:
            return x + own.sum(0)
        if how is Exchange.LOCAL:
            return x + own * self.config.lanes.count**0.5
        past = outputs[-1 - self.config.lanes.delay]
        return x + own + past.sum(0) - past

    def _head(self, x: torch.Tensor) -> torch.Tensor:
        lanes = self.config.lanes
        matrix = self.tensors["embed" if self.config.tied_head else "head"]
        if lanes.sum_before_norm:
            return self._norm(x.sum(0), "norm") @ matrix.T
        normed = self._norm(x, "norm")
        if lanes.head is HeadKind.VOCAB_PARALLEL:
            parts = matrix.view(lanes.count, -1, self.config.hidden)
            return (normed @ parts.transpose(1, 2)).transpose(0, 1).flatten(1)
        if lanes.head is HeadKind.LANE:
            return normed.transpose(0, 1).flatten(1) @ matrix.T
        return normed.mean(0) @ matrix.T

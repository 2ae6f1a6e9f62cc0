"""The Laneformer rule in plain PyTorch and float64, written without a look at engine/reference.py.

Slow on purpose: one Python loop over lanes, one over heads, one over positions; no cache, no fusing. It
is the second opinion that the reference is compared with, so it must share nothing with it but the
shape of the model and the names of its weights.
"""

import math

import torch

from engine.models.config import ModelConfig
from engine.models.rope import RopeLayout
from engine.models.weights import Weights


def logits(weights: Weights, tokens: list[int]) -> torch.Tensor:
    """Logits after each token, [len(tokens), vocab]."""
    c = weights.config
    count, delay = c.lanes.count, c.lanes.delay

    def weight(name: str) -> torch.Tensor:
        return torch.from_numpy(weights.get(name).copy()).double()

    embedding = weight("embed")
    streams = [embedding[tokens].clone() for _ in range(count)]
    attention_outputs: list[list[torch.Tensor]] = []
    mlp_outputs: list[list[torch.Tensor]] = []
    for i in range(c.layers):
        tensors = {
            name: weight(f"layers.{i}.{name}")
            for name in ("attn_norm", "wq", "wk", "wv", "wo", "ffn_norm", "w_gate", "w_up", "w_down")
        }
        attention_outputs.append(
            [
                _attention(c, i, tensors, lane, _norm(c, streams[lane], tensors["attn_norm"]))
                for lane in range(count)
            ]
        )
        streams = _joined(c, i, streams, attention_outputs, c.lanes.attention_comm, delay)
        mlp_outputs.append(
            [_mlp(tensors, lane, _norm(c, streams[lane], tensors["ffn_norm"])) for lane in range(count)]
        )
        streams = _joined(c, i, streams, mlp_outputs, c.lanes.mlp_comm, delay)
    head = embedding if c.tied_head else weight("head")
    return _head(c, streams, weight("norm"), head)


def _joined(
    c: ModelConfig,
    layer: int,
    streams: list[torch.Tensor],
    outputs: list[list[torch.Tensor]],
    comm: bool,
    delay: int,
) -> list[torch.Tensor]:
    result = []
    for lane, stream in enumerate(streams):
        own = outputs[layer][lane]
        if layer < delay and c.lanes.early_comm:
            added = torch.stack(outputs[layer]).sum(0)
        elif layer < delay or not comm:
            added = math.sqrt(len(streams)) * own
        else:
            added = own
            for other in range(len(streams)):
                if other != lane:
                    added = added + outputs[layer - delay][other]
        result.append(stream + added)
    return result


def _norm(c: ModelConfig, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), scale, c.norm_eps)


def _attention(
    c: ModelConfig, layer: int, tensors: dict[str, torch.Tensor], lane: int, x: torch.Tensor
) -> torch.Tensor:
    lanes = c.lanes.count
    q = (x @ tensors["wq"][lane].T).view(len(x), c.heads // lanes, c.head_dim)
    k = (x @ tensors["wk"][lane].T).view(len(x), c.kv_heads // lanes, c.head_dim)
    v = (x @ tensors["wv"][lane].T).view(len(x), c.kv_heads // lanes, c.head_dim)
    q, k = _turned(c, q), _turned(c, k)
    heads = []
    for head in range(q.shape[1]):
        source = head // (c.heads // c.kv_heads)
        rows = []
        for position in range(len(x)):
            first = max(0, position + 1 - c.windows[layer]) if c.windows[layer] else 0
            seen = slice(first, position + 1)
            scores = k[seen, source] @ q[position, head] / math.sqrt(c.head_dim)
            rows.append(torch.softmax(scores, 0) @ v[seen, source])
        heads.append(torch.stack(rows))
    return torch.cat(heads, dim=1) @ tensors["wo"][lane].T


def _turned(c: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    """Rotary positions as multiplication by unit complex numbers; no scaling of wavelengths."""
    assert c.rope.scaling is None
    if c.rope.layout is RopeLayout.INTERLEAVED:
        pairs = x.unflatten(-1, (-1, 2))
    else:
        pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2)
    exponents = -torch.arange(0, c.head_dim, 2).double() / c.head_dim
    angles = torch.outer(torch.arange(len(x)).double(), c.rope.theta**exponents)
    units = torch.polar(torch.ones_like(angles), angles)[:, None]
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * units)
    if c.rope.layout is RopeLayout.HALF:
        turned = turned.transpose(-1, -2)
    return turned.flatten(-2)


def _mlp(tensors: dict[str, torch.Tensor], lane: int, x: torch.Tensor) -> torch.Tensor:
    gate = torch.nn.functional.silu(x @ tensors["w_gate"][lane].T)
    return (gate * (x @ tensors["w_up"][lane].T)) @ tensors["w_down"][lane].T


def _head(
    c: ModelConfig, streams: list[torch.Tensor], scale: torch.Tensor, head: torch.Tensor
) -> torch.Tensor:
    if c.lanes.sum_before_norm:
        return _norm(c, torch.stack(streams).sum(0), scale) @ head.T
    normed = [_norm(c, stream, scale) for stream in streams]
    if c.lanes.head.value == "replicate":
        return torch.stack(normed).mean(0) @ head.T
    if c.lanes.head.value == "lane":
        return torch.cat(normed, dim=1) @ head.T
    slices = head.chunk(len(streams))
    return torch.cat([x @ part.T for x, part in zip(normed, slices, strict=True)], dim=1)

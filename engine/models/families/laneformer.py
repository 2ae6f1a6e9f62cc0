"""Laneformer folders: both generations of config.json and the names of the tensors.

The earlier generation (`laneformer_tp`) says which layers have a sliding window by a count from the
front, or from the end if negative, with exceptions in `unclamped_layers`, and has one `use_comm`. The
released one (`laneformer`) lists them in `swa_layers` and tells attention from MLP. Transformers always
writes the entries that are particular to a model, so those that change the arithmetic are required.
"""

from __future__ import annotations

from typing import Any

from engine.errors import CheckpointError, ConfigError
from engine.models.checkpoints.fields import MOST_LANES, MOST_LAYERS, Fields
from engine.models.checkpoints.stored import Place
from engine.models.config import HeadKind, Lanes, ModelConfig
from engine.models.families.family import Family, FolderFormat, Names
from engine.models.families.rope_entries import read_rope, rope_json
from engine.models.families.standard import ids_json
from engine.models.rope import RopeLayout

_LANE_HEAD = "lm_head.linear.weight"
_NAMES = Names(
    top={"embed": "model.tok_embeddings.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    layer={
        "attn_norm": "attention_norm.weight",
        "wq": "attention.wq.weight",
        "wk": "attention.wk.weight",
        "wv": "attention.wv.weight",
        "wo": "attention.wo.weight",
        "ffn_norm": "ffn_norm.weight",
        "w_gate": "feed_forward.w1.weight",
        "w_up": "feed_forward.w3.weight",
        "w_down": "feed_forward.w2.weight",
    },
    layer_prefix="model.layers.{}.",
)


def _places(config: ModelConfig) -> dict[str, Place]:
    places = _NAMES(config)
    if "head" in places and config.lanes.head is HeadKind.LANE:
        places["head"] = Place(_LANE_HEAD)
    return places


def _stored_shape(config: ModelConfig, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A head cut by vocabulary has a lane axis, as the matrices of layers have."""
    if name == "head" and config.lanes.head is HeadKind.VOCAB_PARALLEL:
        return (config.lanes.count, shape[0] // config.lanes.count, shape[1])
    return shape


def _read(fields: Fields, name: str) -> ModelConfig:
    """The shape in a Laneformer config.json. Raises CheckpointError for what is not supported."""
    if not fields.flag("replicated_rmsn_scale", True):
        raise fields.refuse("replicated_rmsn_scale", "true: a scale for each lane is not supported")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if heads < 1:
        raise fields.refuse("num_attention_heads", "at least 1")
    layers = fields.integer("num_hidden_layers", most=MOST_LAYERS)
    try:
        return ModelConfig(
            name=name,
            family="laneformer",
            hidden=hidden,
            layers=layers,
            heads=heads,
            kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=hidden // heads,
            ffn=fields.integer("intermediate_size"),
            vocab=fields.integer("vocab_size"),
            context=fields.integer("max_position_embeddings"),
            norm_eps=fields.number("norm_eps"),
            tied_head=fields.flag("tie_word_embeddings", False),
            rope=read_rope(fields, RopeLayout.INTERLEAVED),
            lanes=_lanes(fields),
            windows=_windows(fields, layers),
            bos_id=next(iter(fields.integers("bos_token_id")), None),
            eos_ids=fields.integers("eos_token_id"),
        )
    except ConfigError as error:
        raise CheckpointError(f"{fields.source}: {error}") from error


def _lanes(fields: Fields) -> Lanes:
    kind = fields.word("lm_head_type")
    if kind not in tuple(HeadKind):
        raise fields.refuse("lm_head_type", f"one of {', '.join(HeadKind)}")
    together = fields.flag("pre_norm_lane_agg", False)
    if together and kind != HeadKind.REPLICATE:
        raise fields.refuse("pre_norm_lane_agg", "false unless lm_head_type is 'replicate'")
    if fields.word("model_type") == "laneformer_tp":
        attention = mlp = fields.flag("use_comm")
    else:
        attention, mlp = fields.flag("use_attention_comm"), fields.flag("use_mlp_comm")
    return Lanes(
        count=fields.integer("num_lanes", most=MOST_LANES),
        delay=fields.integer("broadcast_delay", most=MOST_LAYERS),
        early_comm=fields.flag("use_early_comm"),
        attention_comm=attention,
        mlp_comm=mlp,
        head=HeadKind(kind),
        sum_before_norm=together,
    )


def _windows(fields: Fields, layers: int) -> tuple[int, ...]:
    """The window of each layer, 0 for full attention."""
    if fields.word("model_type") == "laneformer_tp":
        count = fields.integer("sliding_window_n_layers", 0, most=MOST_LAYERS)
        unclamped = fields.integers("unclamped_layers")
        chosen = {i for i in range(layers) if (i < count or i >= layers + count) and i not in unclamped}
    else:
        chosen = set(fields.integers("swa_layers"))
        beyond = next((i for i in sorted(chosen) if not 0 <= i < layers), None)
        if beyond is not None:
            raise fields.refuse("swa_layers", f"a list of layers from 0 to {layers - 1}")
    if not chosen:
        return ()
    window = fields.integer("sliding_window")
    if window < 1:
        raise fields.refuse("sliding_window", "at least 1")
    return tuple(window if i in chosen else 0 for i in range(layers))


def _write(config: ModelConfig) -> dict[str, Any]:
    """The config.json of the released generation."""
    sizes = {window for window in config.windows if window}
    return {
        "architectures": ["LaneformerForCausalLM"],
        "model_type": "laneformer",
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.ffn,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.context,
        "norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_head,
        "num_lanes": config.lanes.count,
        "broadcast_delay": config.lanes.delay,
        "use_early_comm": config.lanes.early_comm,
        "use_attention_comm": config.lanes.attention_comm,
        "use_mlp_comm": config.lanes.mlp_comm,
        "lm_head_type": config.lanes.head.value,
        "pre_norm_lane_agg": config.lanes.sum_before_norm,
        "replicated_rmsn_scale": True,
        "sliding_window": max(sizes, default=None),
        "swa_layers": [i for i, w in enumerate(config.windows) if w],
        **rope_json(config.rope),
        **ids_json(config),
    }


FAMILY = Family(
    name="laneformer",
    title="Laneformer (delayed tensor parallelism)",
    folder=FolderFormat(
        ("laneformer", "laneformer_tp"),
        _read,
        _write,
        _places,
        layout=RopeLayout.INTERLEAVED,
        stored_shape=_stored_shape,
    ),
)

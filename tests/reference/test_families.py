"""Every family against transformers' own class: tiny random checkpoints that it writes, logits and tokens."""

import copy
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.models.catalogue import Model, open_model
from engine.models.config import Feature
from engine.models.families import families
from engine.reference import Reference
from tests.reference.test_laneformer import relative_error

SHAPE = {
    "hidden_size": 60,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 76,
    "vocab_size": 130,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
LINEAR = {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.5}
GEMMA3_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.6}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.5, 2.0, 3.0],
    "long_factor": [1.0, 2.0, 4.0, 8.0, 16.0],
}
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama", "untied", {}),
    ("llama", "head size of its own", {"head_dim": 14, "tie_word_embeddings": True}),
    ("llama", "llama3 scaling", {"rope_parameters": LLAMA3}),
    ("llama", "linear scaling", {"rope_parameters": LINEAR}),
    ("llama", "yarn scaling", {"rope_parameters": YARN}),
    ("llama", "yarn, fractional bounds", {"rope_parameters": {**YARN, "truncate": False, "beta_fast": 16.0}}),
    ("mistral", "window", {"sliding_window": 7}),
    ("mistral", "no window", {"sliding_window": None, "head_dim": 20}),
    ("qwen2", "untied", {}),
    ("qwen2", "tied", {"tie_word_embeddings": True}),
    ("qwen2", "window", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    ("qwen2", "yarn scaling", {"rope_parameters": {**YARN, "rope_theta": 1e6}}),
    ("qwen3", "untied", {"head_dim": 16}),
    ("qwen3", "tied", {"head_dim": 22, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    ("qwen3", "one head", {"head_dim": 8, "num_attention_heads": 1, "num_key_value_heads": 1}),
    ("smollm3", "every fourth layer unrotated", {"num_hidden_layers": 5}),
    ("smollm3", "windows", {"no_rope_layers": [1, 0, 0], "use_sliding_window": True, "sliding_window": 5}),
    ("gemma2", "as published", {"head_dim": 14, "query_pre_attn_scalar": 14, "sliding_window": 6}),
    (
        "gemma2",
        "a scale of its own",
        {"head_dim": 8, "query_pre_attn_scalar": 100, "attn_logit_softcapping": 5.0},
    ),
    ("gemma3_text", "as published", {"head_dim": 12, "num_hidden_layers": 7, "sliding_window": 6}),
    ("gemma3_text", "linear scaling of full attention", {"head_dim": 12, "rope_parameters": GEMMA3_ROPES}),
    ("phi3", "untied", {}),
    ("phi3", "window, a part of each head", {"rope_parameters": PARTIAL, "sliding_window": 8}),
    ("phi3", "longrope", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 96}),
]
GPT_OSS = {"num_local_experts": 5, "num_experts_per_tok": 2, "head_dim": 14, "num_hidden_layers": 4}
GPT_OSS_YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}
QWEN3_MOE = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 22, "head_dim": 16}
EXPERT_CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("gpt_oss", "as published", {**GPT_OSS, "sliding_window": 8, "rope_parameters": GPT_OSS_YARN}),
    ("gpt_oss", "a low clamp", {**GPT_OSS, "swiglu_limit": 0.8, "rope_parameters": GPT_OSS_YARN}),
    ("gpt_oss", "all experts", {**GPT_OSS, "num_experts_per_tok": 5, "rope_parameters": YARN}),
    ("qwen3_moe", "as published", {**QWEN3_MOE, "norm_topk_prob": True}),
    ("qwen3_moe", "weights of all scores", {**QWEN3_MOE, "norm_topk_prob": False}),
    ("qwen3_moe", "one expert", {**QWEN3_MOE, "num_experts_per_tok": 1, "norm_topk_prob": True}),
]
TOKENS = [int(t) for t in np.random.default_rng(3).integers(3, 130, 64)]
NEW_TOKENS = 32


@pytest.mark.parametrize(
    ("family", "changes"),
    [(f, c) for f, _, c in CASES + EXPERT_CASES],
    ids=[f"{f}-{i}" for f, i, _ in CASES + EXPERT_CASES],
)
def test_logits_and_tokens_are_those_of_transformers(
    tmp_path: Path, family: str, changes: dict[str, Any]
) -> None:
    theirs = write_by_transformers(tmp_path, family, changes)
    model = open_model(str(tmp_path))

    assert model.config.family == family.removesuffix("_text")
    compare(model, theirs)


@pytest.mark.parametrize(
    ("dtype", "devices"), [(torch.float16, 1), (torch.bfloat16, 2)], ids=["fp16", "bf16-2-devices"]
)
@pytest.mark.parametrize(
    ("family", "changes"),
    [(f, c) for f, _, c in CASES + EXPERT_CASES],
    ids=[f"{f}-{i}" for f, i, _ in CASES + EXPERT_CASES],
)
def test_the_cpu_backend_gives_them_too(
    tmp_path: Path, family: str, changes: dict[str, Any], dtype: torch.dtype, devices: int
) -> None:
    """Its cache is float16. Tokens are the best but for near ties."""
    theirs = write_by_transformers(tmp_path, family, changes, dtype)
    model = open_model(str(tmp_path))
    # An amplitude makes the scores of attention larger, and with them what a float16 key has lost.
    tolerance = 1e-2 if Feature.ROTATION_AMPLITUDE in model.config.features else 3e-3
    if model.config.kv_heads % devices:
        devices = 1
    backend = open_backend("cpu", model, devices=devices, options={"threads": 1})
    try:
        logits, tokens = backend.logits(TOKENS), _launched(backend, TOKENS[:20])
    finally:
        backend.close()

    assert relative_error(logits, _their_logits(theirs, TOKENS)) < tolerance
    expected = _their_logits(theirs, TOKENS[:20] + tokens)[19:-1]
    lost = expected.max(axis=1) - expected[np.arange(NEW_TOKENS), tokens]
    assert np.all(lost < 2 * tolerance * np.abs(expected).max())


def test_every_family_with_a_class_of_its_own_is_compared() -> None:
    """Laneformer has none: tests/reference/test_laneformer.py compares it with another implementation."""
    compared = {family.removesuffix("_text") for family, _, _ in CASES + EXPERT_CASES}
    assert set(families()) - {"laneformer"} == compared


def compare(model: Model, theirs: Any) -> None:
    """Logits of a prompt and greedy tokens are those of transformers' module `theirs`."""
    logits, tokens = _forward(model, TOKENS), _greedy(model, TOKENS[:20])

    assert relative_error(logits, _their_logits(theirs, TOKENS)) < 1e-4
    assert tokens == _their_logits(theirs, TOKENS[:20] + tokens).argmax(axis=1)[19:-1].tolist()


def write_by_transformers(
    folder: Path, family: str, changes: dict[str, Any], dtype: torch.dtype = torch.float32
) -> Any:
    """A random model of transformers' class for `family`, saved in `folder`; biases and norms random too."""
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(family, **{**SHAPE, **changes})
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    with torch.no_grad():
        for values in model.parameters():
            if values.ndim == 1 or not values.any():  # biases of experts are zeros of two dimensions
                values += 0.3 * torch.randn_like(values)
            values.copy_(values.to(dtype))
    # A copy: the cast rounds the frequencies of the rotation, too.
    copy.deepcopy(model).to(dtype).save_pretrained(folder)
    return model


def _forward(model: Model, tokens: list[int]) -> np.ndarray:
    """In chunks of odd sizes, as a prompt is read."""
    reference = Reference(model.weights)
    cache = reference.new_cache(len(tokens))
    bounds = [0, 1, 20, len(tokens)]
    chunks = [reference.forward(tokens[a:b], cache) for a, b in pairwise(bounds)]
    return np.concatenate(chunks)


def _greedy(model: Model, prompt: list[int]) -> list[int]:
    reference = Reference(model.weights)
    cache = reference.new_cache(len(prompt) + NEW_TOKENS)
    logits = reference.forward(prompt, cache, scored_from=len(prompt) - 1)
    tokens = [int(logits[0].argmax())]
    while len(tokens) < NEW_TOKENS:
        tokens.append(int(reference.forward(tokens[-1:], cache)[0].argmax()))
    return tokens


def _launched(backend: Backend, prompt: list[int]) -> list[int]:
    launch = backend.launch(Job(tuple(prompt), NEW_TOKENS))
    tokens = []
    while launch.outcome is None:
        tokens += [token.id for token in launch.poll(1.0)]
    return tokens + [token.id for token in launch.poll(0)]


def _their_logits(model: Any, tokens: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits: np.ndarray = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return logits

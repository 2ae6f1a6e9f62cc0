"""The reference against transformers' Llama, on tiny random weights and on a real model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from engine.backends.base import Job
from engine.backends.numpy_backend import NumpyBackend
from engine.models.catalogue import Model, open_model, pull
from engine.models.config import ModelConfig
from engine.models.rope import Llama3Scaling, Rope, RopeLayout
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.reference.hf_llama import hf_llama
from tests.reference.test_laneformer import relative_error

TINY = ModelConfig(
    name="tiny-llama",
    hidden=96,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=16,
    ffn=96,
    vocab=128,
    context=256,
    norm_eps=1e-6,
)
LLAMA31 = Llama3Scaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 128, 200)]
PROMPTS = (
    "def fibonacci(n):",
    "The capital of France is",
    "import numpy as np\n\n\ndef softmax(x):\n",
    "Once upon a time, in a village by the sea, there lived",
    "<|im_start|>user\nWhat is a mutex?<|im_end|>\n<|im_start|>assistant\n",
)
NEW_TOKENS = 48


@pytest.mark.parametrize(
    "config",
    [
        TINY,
        replace(TINY, tied_head=True),
        replace(TINY, rope=Rope(theta=500000.0, scaling=LLAMA31)),
        replace(TINY, rope=Rope(layout=RopeLayout.INTERLEAVED)),
        replace(TINY, kv_heads=6),
        replace(TINY, kv_heads=1),
    ],
    ids=["untied", "tied", "llama 3.1 scaling", "interleaved", "no sharing of KV heads", "one KV head"],
)
def test_logits_match_those_of_transformers(config: ModelConfig) -> None:
    weights = RandomWeights(config, seed=5)
    reference = Reference(weights)

    ours = reference.forward(TOKENS, reference.new_cache(len(TOKENS)))

    with torch.no_grad():
        theirs = hf_llama(weights)(torch.tensor([TOKENS])).logits[0].numpy()
    assert relative_error(ours, theirs) < 1e-4


@pytest.fixture(scope="module")
def smollm2() -> Model:
    pull("smollm2-135m")
    return open_model("smollm2-135m")


@pytest.mark.slow
def test_greedy_tokens_of_smollm2_equal_those_of_transformers(smollm2: Model) -> None:
    """One pass over prompt and continuation tells all that greedy decoding would have chosen.

    If at every place the largest logit is the token that stands there, then, by induction from the
    prompt on, decoding one by one chooses that same continuation.
    """
    assert smollm2.tokenizer is not None
    prompts = [smollm2.tokenizer.encode(text, special=True) for text in PROMPTS]
    backend = NumpyBackend(smollm2)

    ours = [_greedy(backend, prompt) for prompt in prompts]

    llama = hf_llama(smollm2.weights)
    theirs = [_greedy_given(llama, *pair) for pair in zip(prompts, ours, strict=True)]
    assert ours == theirs
    assert all(len(continuation) == NEW_TOKENS for continuation in ours)


@pytest.mark.slow
def test_logits_of_smollm2_match_those_of_transformers(smollm2: Model) -> None:
    assert smollm2.tokenizer is not None
    tokens = smollm2.tokenizer.encode(" ".join(PROMPTS), special=True)
    reference = Reference(smollm2.weights)

    ours = reference.forward(tokens, reference.new_cache(len(tokens)))

    with torch.no_grad():
        theirs = hf_llama(smollm2.weights)(torch.tensor([tokens])).logits[0].numpy()
    assert relative_error(ours, theirs) < 1e-4


def _greedy(backend: NumpyBackend, prompt: list[int]) -> list[int]:
    launch = backend.launch(Job(tuple(prompt), max_tokens=NEW_TOKENS))
    ids: list[int] = []
    while launch.outcome is None:
        ids += [token.id for token in launch.poll(10.0)]
    return ids + [token.id for token in launch.poll(0)]


def _greedy_given(llama: LlamaForCausalLM, prompt: list[int], continuation: list[int]) -> list[int]:
    """What greedy decoding chooses at each place of the continuation, given what stands before it."""
    with torch.no_grad():
        logits = llama(torch.tensor([prompt + continuation])).logits[0]
    return logits.argmax(dim=1)[len(prompt) - 1 : -1].tolist()

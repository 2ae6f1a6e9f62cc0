"""The monokernel's sources run on the CPU, thread by thread, and leave what the reference computes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from engine.backends.cuda.constants import Tuning
from engine.backends.cuda.model_header import header
from engine.backends.cuda.tape import Matrix
from engine.models.config import Activation, Experts, ModelConfig
from engine.models.presets import load_preset
from engine.models.rope import Rope
from engine.models.storage import Storage
from engine.models.weights import RandomWeights
from engine.reference import Reference
from tests.gpu.cache import of_reference, require_close
from tests.gpu.models import LANEFORMER, LLAMA, AsKept, RoutedWeights
from tests.kernels.cuda.emulation.launch import EmulatedGpu
from tests.kernels.cuda.emulation.ranks import EmulatedGpus
from tests.kernels.cuda.emulation.sources import convert
from tests.nightly import at_night, each_time_but
from tests.reference.test_laneformer import relative_error

PROMPT, SHORT = 20, 5
NEW = 3
PREFILL_TOLERANCE = 1e-3
"""Of the largest number of a layer: prefill rounds activations to FP16."""
SMALL = replace(
    LLAMA,
    name="emulated",
    hidden=64,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=32,
    ffn=112,
    vocab=96,
    context=256,
    windows=(0, 0),
)
EXPERTS = replace(
    SMALL, family="qwen3_moe", qk_norm=True, kv_heads=1, ffn=32, experts=Experts(count=8, chosen=2)
)
GPT_OSS = replace(
    load_preset("tiny-experts").config,
    hidden=64, layers=2, heads=2, kv_heads=1, ffn=32, vocab=96, context=64, windows=(4, 0),
)  # fmt: skip
GEMMA = replace(
    SMALL,
    family="gemma2",
    post_norms=True,
    activation=Activation.GELU_TANH,
    embedding_scale=8.0,
    attention_scale=0.25,
    attention_cap=0.5,
    logit_cap=3.0,
    windows=(9, 0),
    tied_head=True,
)
GEMMA_3 = replace(
    GEMMA,
    family="gemma3",
    qk_norm=True,
    attention_cap=0.0,
    logit_cap=0.0,
    rope=Rope(1e6),
    layer_ropes=(Rope(1e4), Rope(1e6)),
)
MODELS: dict[str, tuple[ModelConfig, int]] = {
    "llama": (SMALL, 2),
    "columns in parts": (replace(SMALL, heads=8, ffn=512), 4),
    "three halves of tiles on each SM": (replace(SMALL, hidden=48), 4),
    "seven halves of tiles on each SM": (replace(SMALL, hidden=280, qkv_bias=True), 10),
    "more steps of columns than stages": (replace(SMALL, hidden=320), 2),
    "three steps of columns": (replace(SMALL, heads=5, kv_heads=1, context=1024), 8),
    "normed heads, a window": (replace(SMALL, family="qwen3", qk_norm=True, windows=(9, 0)), 3),
    "lanes, of which one is late": (
        replace(SMALL, layers=3, windows=(0, 9, 0), lanes=replace(LANEFORMER.lanes, count=2, delay=1)),
        2,
    ),
    "norms after modules, soft caps": (GEMMA, 3),
    "norms after modules, heads normed, two rotations": (GEMMA_3, 2),
    "experts": (EXPERTS, 3),
    "experts, SMs with rows of the router and no tiles": (replace(EXPERTS, experts=Experts(32, 2)), 20),
    "experts with biases and sinks": (GPT_OSS, 2),
}
NIGHTLY_MODELS = (
    "seven halves of tiles on each SM", "three steps of columns",
    "norms after modules, heads normed, two rotations",
    "experts, SMs with rows of the router and no tiles",
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("emulation")


def require_references(
    gpu: EmulatedGpu | EmulatedGpus, reference: Reference, prompt: list[int], tokens: list[int], what: str
) -> None:
    """That NEW greedy `tokens` after a prompt, and the keys and values of all but the last, are its own."""
    assert len(tokens) == NEW
    known = len(prompt) + len(tokens) - 1
    cache = reference.new_cache(known)
    logits = reference.forward([*prompt, *tokens[:-1]], cache)
    assert tokens == logits[len(prompt) - 1 :].argmax(axis=1).tolist()
    require_close(gpu.cache(known), of_reference(cache, reference.config, known), PREFILL_TOLERANCE, what)


@pytest.mark.parametrize("tiles_from", [1, 1000], ids=["tiles", "shares"])
@pytest.mark.parametrize("name", each_time_but(NIGHTLY_MODELS, MODELS))
def test_prefill_and_decode_leave_the_references_keys_values_and_tokens(
    name: str, tiles_from: int, folder: Path
) -> None:
    config, cores = MODELS[name]
    weights = RandomWeights(config, 3)
    length = SHORT if config.experts else PROMPT
    prompt = np.random.default_rng(5).integers(0, config.vocab, length).tolist()

    gpu = EmulatedGpu(folder, config, weights, cores)
    tokens = gpu.generate(prompt, NEW, prefilled=length - 1, tiles_from=tiles_from)

    require_references(gpu, Reference(weights), prompt, tokens, name)


def test_experts_of_a_long_prompt_have_several_tiles_of_tokens_or_none(folder: Path) -> None:
    config = EXPERTS
    weights = RoutedWeights(config, 3, [0.0] * 6 + [9.0] * 2)
    prompt = np.random.default_rng(5).integers(0, config.vocab, 140).tolist()

    gpu = EmulatedGpu(folder, config, weights, 3)
    gpu.generate(prompt, 1, prefilled=139)

    reference = Reference(weights)
    cache = reference.new_cache(139)
    reference.forward(prompt[:139], cache)
    require_close(gpu.cache(139), of_reference(cache, config, 139), PREFILL_TOLERANCE, "several tiles")


@pytest.mark.parametrize(
    ("name", "tiles_from", "scored"),
    [("llama", 1000, 1), ("llama", 1000, 4), ("lanes, of which one is late", 1, 1)],
    ids=["shares", "shares, known ones behind it", "tiles"],
)
def test_the_last_token_goes_along_with_its_prompt_to_the_references_logits(
    name: str, tiles_from: int, scored: int, folder: Path
) -> None:
    config, cores = MODELS[name]
    weights = RandomWeights(config, 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()
    reference = Reference(weights)

    gpu = EmulatedGpu(folder, config, weights, cores)
    found = gpu.logits(prompt, prefilled=PROMPT - scored, tiles_from=tiles_from)

    wanted = reference.forward(prompt, reference.new_cache(PROMPT), scored_from=PROMPT - scored)
    assert found.shape == wanted.shape
    assert relative_error(found, wanted) < PREFILL_TOLERANCE


def test_where_requests_may_share_launches_a_last_token_has_the_bits_of_decode(folder: Path) -> None:
    config, cores = MODELS["llama"]
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()
    last = PROMPT - 1

    gpu = EmulatedGpu(folder, config, RandomWeights(config, 3), cores)
    along = gpu.logits(prompt, prefilled=last)
    apart = gpu.logits(prompt, prefilled=last, last_along=False)
    decoded = gpu.logits(prompt, first=last, prefilled=last)

    assert np.array_equal(apart, decoded)
    assert not np.array_equal(along, decoded)


def test_words_of_layers_that_a_last_token_passed_by_are_not_taken_for_later_ones(folder: Path) -> None:
    config, cores = MODELS["normed heads, a window"]
    weights, new = RandomWeights(config, 3), 5
    prompt = np.random.default_rng(5).integers(0, config.vocab, PROMPT).tolist()
    reference = Reference(weights)

    gpu = EmulatedGpu(folder, config, weights, cores)
    for _ in range(2):
        tokens = gpu.generate(prompt, new, prefilled=PROMPT - 1)

        logits = reference.forward([*prompt, *tokens[:-1]], reference.new_cache(PROMPT + new))
        assert tokens == logits[PROMPT - 1 :].argmax(axis=1).tolist()


WIDE_GEMMA = replace(GEMMA, head_dim=256, heads=2, kv_heads=1)


@pytest.mark.parametrize(
    ("config", "cores", "tiles_from", "cut", "same_bits"),
    [
        (*MODELS["normed heads, a window"], 1000, 37, True),
        (*MODELS["lanes, of which one is late"], 1, 37, True),
        (*MODELS["columns in parts"], 1, 37, False),  # as many as suit the number of tokens
        at_night(WIDE_GEMMA, 3, 1, 37, True),
        at_night(WIDE_GEMMA, 16, 1, 131, True),  # its first 64 tokens end in half a step of attention
        at_night(WIDE_GEMMA, 3, 1000, 37, True),
    ],
)
def test_a_long_prompt_leaves_the_same_however_it_is_cut(
    config: ModelConfig, cores: int, tiles_from: int, cut: int, same_bits: bool, folder: Path
) -> None:
    weights, end = RandomWeights(config, 3), 230
    prompt = np.random.default_rng(5).integers(0, config.vocab, end + 1).tolist()
    reference = Reference(weights)
    expected = reference.new_cache(end + 1)
    reference.forward(prompt, expected)

    gpu = EmulatedGpu(folder, config, weights, cores)
    gpu.generate(prompt, 1, prefilled=end, tiles_from=tiles_from)
    whole = gpu.cache(end)
    parts = EmulatedGpu(folder, config, weights, cores)
    parts.generate(prompt[: cut + 1], 1, prefilled=cut, tiles_from=tiles_from)
    parts.generate(prompt, 1, prefilled=end, first=cut, tiles_from=tiles_from)
    again = parts.cache(end)

    require_close(whole, of_reference(expected, config, end), PREFILL_TOLERANCE, "whole")
    require_close(again, of_reference(expected, config, end), PREFILL_TOLERANCE, "in two")
    assert np.array_equal(again.keys, whole.keys) == same_bits
    assert np.array_equal(again.values, whole.values) == same_bits


@pytest.mark.parametrize(
    ("rows", "chosen", "renormalise"),
    [
        at_night([0.0] * 8, 2, True),
        ([0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 2, False),
        ([1.0 if i in (3, 5, 35, 37) else 2.0 if i == 36 else 0.0 for i in range(40)], 3, True),
        at_night([1.0, 0.0, 1.0], 3, True),
    ],
    ids=[
        "all scores equal, whatever the token",
        "more at the top than are met",
        "two of a lane, and more than are left",
        "all are met",
    ],
)
def test_equal_scores_meet_the_experts_of_the_reference_each_time(
    rows: list[float], chosen: int, renormalise: bool, folder: Path
) -> None:
    experts = Experts(len(rows), chosen, renormalise)
    config = replace(EXPERTS, layers=1, windows=(0,), experts=experts)
    weights = RoutedWeights(config, 3, rows)
    prompt = [5, 80, 17]

    gpu = EmulatedGpu(folder, config, weights, cores=2)
    tokens, again = (gpu.generate(prompt, NEW, prefilled=0) for _ in range(2))

    reference = Reference(weights)
    logits = reference.forward([*prompt, *tokens[:-1]], reference.new_cache(len(prompt) + NEW))
    assert tokens == again == logits[len(prompt) - 1 :].argmax(axis=1).tolist()


@pytest.mark.parametrize(
    ("name", "kv_heads"),
    [
        at_night("experts", 2),
        ("experts", 1),
        ("experts with biases and sinks", 2),
        at_night("experts with biases and sinks", 1),
    ],
)
@pytest.mark.parametrize("prefilled", [0, SHORT - 1])
def test_experts_cut_over_two_gpus_leave_the_references_keys_values_and_tokens(
    name: str, kv_heads: int, prefilled: int, folder: Path
) -> None:
    """With one KV head both GPUs hold it."""
    config, cores = MODELS[name]
    config = replace(config, heads=4, kv_heads=kv_heads, ffn=64)
    weights = RandomWeights(config, 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, SHORT).tolist()

    gpus = EmulatedGpus(folder, config, weights, cores, ranks=2)
    tokens, again = (gpus.generate(prompt, NEW, prefilled=prefilled) for _ in range(2))

    assert again == tokens
    require_references(gpus, Reference(weights), prompt, tokens, name)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        at_night("llama", 2),
        ("llama", 4),
        at_night("llama", 8),
        ("norms after modules, soft caps", 2),
        at_night("norms after modules, soft caps", 4),
        at_night("norms after modules, soft caps", 8),
    ],
)
def test_a_dense_model_cut_over_gpus_leaves_the_references_keys_values_and_tokens(
    name: str, ranks: int, folder: Path
) -> None:
    """Of two and four GPUs the parts of the stream meet where it is read, of eight where they are posted."""
    config, cores = MODELS[name]
    config = replace(config, heads=max(4, ranks), kv_heads=2, ffn=32 * max(4, ranks))
    weights = RandomWeights(config, 3)
    prompt = np.random.default_rng(5).integers(0, config.vocab, SHORT).tolist()

    gpus = EmulatedGpus(folder, config, weights, cores, ranks=ranks)
    tokens, again = (gpus.generate(prompt, NEW, prefilled=0) for _ in range(2))

    assert again == tokens
    require_references(gpus, Reference(weights), prompt, tokens, name)


@pytest.mark.parametrize("prefilled", [0, SHORT - 1])
@pytest.mark.parametrize(
    ("ranks", "ffn", "storage", "columns_a_gpu"),
    [
        at_night(4, 160, None, 64),
        (4, 224, Storage.MXFP4, 64),
        at_night(8, 160, None, 32),
        at_night(8, 352, Storage.MXFP4, 64),
    ],
    ids=["5 chunks on 4", "7 chunks in runs of 2 on 4", "5 chunks on 8", "11 chunks in runs of 2 on 8"],
)
def test_experts_whose_columns_are_padded_leave_the_references_keys_values_and_tokens(
    ranks: int, ffn: int, storage: Storage | None, columns_a_gpu: int, prefilled: int, folder: Path
) -> None:
    """As those of GPT-OSS are on four and eight GPUs. The last ones have padding, or nothing else."""
    config = replace(GPT_OSS, heads=8, kv_heads=8, ffn=ffn)
    weights = RandomWeights(config, 3, expert_storage=storage)
    prompt = np.random.default_rng(5).integers(0, config.vocab, SHORT).tolist()

    gpus = EmulatedGpus(folder, config, weights, 2, ranks=ranks)
    assert gpus.layout.config.ffn == columns_a_gpu
    assert gpus.chosen.named("layers.0.experts.0.w_down") is (storage or Storage.F16)
    tokens = gpus.generate(prompt, NEW, prefilled=prefilled)

    require_references(gpus, Reference(AsKept(weights, gpus.chosen)), prompt, tokens, f"{ranks} GPUs")


@pytest.mark.parametrize(
    ("name", "head_dim"),
    [
        ("norms after modules, soft caps", 32),
        at_night("norms after modules, soft caps", 256),
        at_night("norms after modules, heads normed, two rotations", 256),
    ],
)
def test_logits_with_norms_after_modules_are_the_references(name: str, head_dim: int, folder: Path) -> None:
    config, cores = MODELS[name]
    config = replace(config, head_dim=head_dim)
    weights, tokens = RandomWeights(config, 3), [5, 80, 17, 3]

    found = EmulatedGpu(folder, config, weights, cores).logits(tokens)

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))
    capped = np.abs(expected).max() > 0.9 * config.logit_cap
    assert capped or not config.logit_cap, "the cap does nothing here"
    assert relative_error(found, expected) < PREFILL_TOLERANCE


@pytest.mark.parametrize(
    ("chunks", "hidden", "cores", "slot_units", "slot_chunks"),
    [
        (260, 64, 4, None, 24),
        at_night(260, 64, 2, None, 12),
        at_night(388, 48, 2, None, 16),
        (260, 64, 2, 40, 10),
        at_night(260, 48, 4, None, 32),
    ],
    ids=[
        "warps alike",
        "warps not alike",
        "a last slot alone",
        "slots with parts of two windows",
        "halves of tiles",
    ],
)
def test_logits_of_an_mlp_whose_vector_comes_in_windows_are_the_references(
    chunks: int, hidden: int, cores: int, slot_units: int | None, slot_chunks: int, tmp_path: Path
) -> None:
    """The last window is not full, and neither is the last slot. Windows have 96 chunks."""
    config = replace(SMALL, layers=1, windows=(0,), hidden=hidden, ffn=32 * chunks)
    weights = RandomWeights(config, 3)
    tokens = [5, 1]
    gpu = EmulatedGpu(tmp_path, config, weights, cores, Tuning(slot_units=slot_units))
    assert "constexpr int WINDOW_CHUNKS = 96;" in header(gpu.layout)
    [group] = gpu.layout.plan.groups(0, Matrix.DOWN)
    assert group.chunks_a_slot(gpu.layout.slot_units, Storage.F16) == slot_chunks

    found = gpu.logits(tokens)

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))
    assert relative_error(found, expected) < PREFILL_TOLERANCE


@pytest.mark.nightly
def test_an_sm_without_a_tile_of_the_mlp_follows_the_stream_all_the_same(tmp_path: Path) -> None:
    config = replace(GEMMA, hidden=32, heads=1, kv_heads=1, head_dim=32, ffn=32, vocab=72)
    weights, tokens = RandomWeights(config, 3), [5, 80 % 72, 17]

    found = EmulatedGpu(tmp_path, config, weights, cores=9).logits(tokens)

    reference = Reference(weights)
    expected = reference.forward(tokens, reference.new_cache(len(tokens)))
    assert relative_error(found, expected) < PREFILL_TOLERANCE


@pytest.mark.nightly
def test_an_sm_without_a_tile_of_the_experts_waits_for_no_router(tmp_path: Path) -> None:
    """It has tiles of other matrices, behind which nothing of the experts comes."""
    config = replace(EXPERTS, hidden=32, heads=1, head_dim=32, vocab=72, experts=Experts(8, 1))
    weights = RandomWeights(config, 3)

    gpu = EmulatedGpu(tmp_path, config, weights, cores=9)
    tokens = gpu.generate([5], 1, prefilled=0)

    reference = Reference(weights)
    assert tokens == reference.forward([5], reference.new_cache(1)).argmax(axis=1).tolist()


@pytest.mark.parametrize("experts", [4, 8], ids=["no rows of the router either", "with rows of the router"])
def test_sms_that_equal_shares_leave_out_go_along(experts: int, tmp_path: Path) -> None:
    """The last of five: the others have two tiles of attention's output each, and four of gates and ups."""
    config = replace(EXPERTS, experts=Experts(experts, 2))
    weights = RandomWeights(config, 3)
    prompt = [5, 80, 17]

    gpu = EmulatedGpu(tmp_path, config, weights, cores=5, equal=True)
    tokens = gpu.generate(prompt, NEW, prefilled=0)

    of_last = gpu.layout.plan.shares[4]
    assert [of_last[matrix].tiles for matrix in (Matrix.ATTN_OUT, Matrix.GATE_UP, Matrix.DOWN)] == [0, 0, 0]
    require_references(gpu, Reference(weights), prompt, tokens, "equal shares")


def test_an_unknown_ptx_statement_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"does not know the PTX statement 'bar\.red"):
        convert('asm volatile("bar.red.popc.u32 %0, 1, %1;" : "=r"(count) : "r"(predicate));')

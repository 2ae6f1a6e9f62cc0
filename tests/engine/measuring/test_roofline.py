"""The roofline reproduces the figures that were published for this problem, and counts bytes one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.measuring.bandwidth import HARDWARE, PUBLISHED_READ_GBS, datasheet_gbs, hardware, measure_read_gbs
from engine.measuring.measurement import read_measurements
from engine.measuring.roofline import (
    PUBLISHED,
    active_model,
    bytes_per_token,
    ceiling,
    known_models,
    launch_limit,
    launch_overhead_us,
    mbu,
    mean_bytes_per_token,
    plan,
    read_gbs,
    seconds_for,
    storage_of_preset,
    token_cost,
)
from engine.models.config import HeadKind, Lanes, ModelConfig, tensor_shapes
from engine.models.presets import load_preset
from engine.models.storage import Storage

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
LANEFORMER = ModelConfig(
    name="laneformer-2b",
    hidden=3072,
    layers=15,
    heads=32,
    kv_heads=16,
    head_dim=96,
    ffn=12288,
    vocab=32000,
    context=4096,
    lanes=Lanes(count=8, delay=2),
    windows=(512,) * 10 + (0,) * 5,
)
TINY = ModelConfig(
    "tiny", hidden=64, layers=3, heads=4, kv_heads=2, head_dim=16, ffn=96, vocab=128, context=64
)


def rounded(value: float, step: float) -> float:
    return step * round(value / step)


def test_ten_kernels_in_25_layers_cost_1125_us_and_cap_at_about_890_tok_s() -> None:
    assert launch_overhead_us(25, 10, 4.5) == 1125.0
    assert rounded(launch_limit(25, 10, 4.5), 10) == 890


def test_1125_us_is_more_than_three_times_the_budget_at_3000_tok_s() -> None:
    assert round(1e6 / 3000) == 333
    assert launch_overhead_us(25, 10, 4.5) / (1e6 / 3000) > 3


def test_five_kernels_a_layer_cap_at_about_1800_tok_s() -> None:
    assert rounded(launch_limit(25, 5, 4.5), 100) == 1800


def test_2b_weights_in_fp16_on_8_h200_have_a_ceiling_of_about_7700_tok_s() -> None:
    assert active_model("2B dense").bytes_per_token == 4e9
    assert rounded(ceiling(4e9, PUBLISHED_READ_GBS["H200"]), 100) == 7700


def test_published_read_figures_are_80_percent_of_the_makers() -> None:
    for name, gbs in PUBLISHED_READ_GBS.items():
        assert round(gbs / (8000 * hardware(name).stated_tbs), 1) == 0.8


def test_an_h200_reads_what_was_measured_on_one() -> None:
    runs = read_measurements(BENCHMARKS / "laneformer-2b-h200.json")
    measured = [device.measured_gbs / 1000 for run in runs for device in run.devices]
    assert measured == pytest.approx([hardware("H200").read_tbs] * len(measured), rel=0.005)


def test_no_kept_measurement_is_above_the_ceiling_of_a_plain_read() -> None:
    for run in read_measurements(BENCHMARKS / "laneformer-2b-h200.json"):
        assert run.decode.median < ceiling(run.model.bytes_per_token.total, read_gbs("H200", 1))


def test_3000_tok_s_of_a_2b_model_on_8_mi300x_is_36_percent_of_bandwidth() -> None:
    assert round(mbu(4e9, 3000, PUBLISHED_READ_GBS["MI300X"]), 2) == 0.36


@pytest.mark.parametrize(
    ("model", "gpu", "tok_s", "step"),
    [
        ("Qwen3-Coder-Next", "H200", 3650, 50),
        ("Qwen3-Coder-Next", "MI300X", 4000, 50),
        ("GPT-OSS-120B", "H200", 2200, 50),
        ("GPT-OSS-120B", "MI300X", 2400, 50),
        ("DeepSeek-V4-Flash", "H200", 1160, 10),
        ("DeepSeek-V4-Flash", "MI300X", 1270, 10),
        ("Kimi-K2.6", "H200", 325, 5),
        ("Kimi-K2.6", "MI300X", 355, 5),
    ],
)
def test_mixtures_of_experts_at_todays_utilisation_match_the_published_projection(
    model: str, gpu: str, tok_s: int, step: int
) -> None:
    today = mbu(4e9, 3000, PUBLISHED_READ_GBS["MI300X"])  # the 36 %
    speed = ceiling(token_cost(model).weights, PUBLISHED_READ_GBS[gpu], utilisation=today)
    assert rounded(speed, step) == tok_s


def test_deepseek_v4_flash_has_the_published_ceiling_on_8_mi300x() -> None:
    assert (
        rounded(ceiling(active_model("DeepSeek-V4-Flash").bytes_per_token, PUBLISHED_READ_GBS["MI300X"]), 10)
        == 3560
    )


@pytest.mark.parametrize(
    ("name", "billions"),
    [("Qwen3-Coder-Next", 3.0), ("DeepSeek-V4-Flash", 12.5), ("Kimi-K2.6", 32.0)],
)
def test_active_parameters_are_the_published_ones(name: str, billions: float) -> None:
    assert round(active_model(name).params / 1e9, 1) == billions


def test_50000_tokens_take_eight_minutes_at_100_tok_s_and_under_twenty_seconds_at_3000() -> None:
    assert round(seconds_for(50_000, 100) / 60) == 8
    assert 16 < seconds_for(50_000, 3000) < 20


def test_rubin_and_mi450_have_about_four_times_the_bandwidth_of_todays_nodes() -> None:
    assert round(hardware("Rubin").stated_tbs / hardware("H200").stated_tbs) in (4, 5)
    assert round(hardware("MI450").stated_tbs / hardware("MI300X").stated_tbs) == 4


def test_published_speeds_are_labelled_with_their_source() -> None:
    assert {(p.hardware, p.devices, p.tok_s) for p in PUBLISHED} == {
        ("MI300X", 8, 3000.0),
        ("H200", 8, 2100.0),
    }
    assert all(p.source and p.who for p in PUBLISHED)


def test_laneformer_streams_4_44_gb_of_weights_a_token() -> None:
    found = bytes_per_token(LANEFORMER, 256)
    assert LANEFORMER.parameters == 2_320_069_632
    assert round(found.weights / 1e9, 2) == 4.44


def test_a_window_bounds_the_kv_that_a_layer_reads() -> None:
    assert bytes_per_token(LANEFORMER, 4096).kv == (10 * 512 + 5 * 4096) * 2 * 16 * 96 * 2
    wide = replace(LANEFORMER, windows=(2048,) * 10 + (0,) * 5)
    assert round(bytes_per_token(wide, 4096).kv / 1e6) == 252


@pytest.mark.parametrize(
    ("tied", "head"),
    [(tied, head) for tied in (False, True) for head in HeadKind if not (tied and head is HeadKind.LANE)],
)
def test_weights_are_the_sum_of_every_tensor_except_the_unread_rows_of_the_embedding(
    tied: bool, head: HeadKind
) -> None:
    config = replace(TINY, tied_head=tied, lanes=Lanes(count=2, delay=1, head=head))
    sizes = {name: _size(shape) for name, shape in tensor_shapes(config)}
    expected = sum(sizes.values()) + config.hidden - (0 if tied else sizes["embed"])
    assert bytes_per_token(config, 0).weights == 2 * expected


@given(st.integers(0, 63), st.integers(0, 70), st.sampled_from([Storage.F16, Storage.FP8_BLOCK, None]))
def test_kv_grows_with_context_and_weights_do_not(context: int, window: int, kept: Storage | None) -> None:
    config = replace(TINY, windows=(window, 0, window))
    now, then = (bytes_per_token(config, c, lambda _name: kept) for c in (context, context + 1))
    assert now.weights == then.weights
    assert 0 <= then.kv - now.kv <= 3 * 2 * config.kv_dim * 2
    assert now.total == now.weights + now.kv


@given(st.integers(0, 40), st.integers(1, 24))
def test_mean_bytes_lie_between_the_first_step_and_the_last(context: int, tokens: int) -> None:
    mean = mean_bytes_per_token(TINY, context, tokens)
    first = bytes_per_token(TINY, context)
    last = bytes_per_token(TINY, context + max(0, tokens - 2))
    assert mean.weights == first.weights
    assert mean.kv == pytest.approx(
        (first.kv + last.kv) / 2, abs=1
    )  # without windows KV grows by the same each step


@pytest.mark.parametrize("context", [-1, 65])
def test_a_context_beyond_the_models_limit_is_refused(context: int) -> None:
    with pytest.raises(ValueError, match="tiny holds 0 to 64"):
        bytes_per_token(TINY, context)


def test_plan_gives_a_row_for_each_kind_of_hardware() -> None:
    rows = plan(4.0e9, HARDWARE, devices=8, utilisation=0.36, layers=25, tokens=50_000)
    h200 = next(row for row in rows if row.hardware == "H200")
    assert h200.gbs == 38_400
    assert h200.ceiling_tok_s == pytest.approx(9600)
    assert h200.at_mbu_tok_s == pytest.approx(3456)
    assert rounded(h200.launch_tok_s, 10) == 890
    assert h200.seconds == pytest.approx(50_000 / 3456)


@pytest.mark.parametrize("wrong", [{"devices": 0}, {"utilisation": -1.0}, {"tokens": 0}, {"launch_us": 0.0}])
def test_plan_refuses_figures_that_are_not_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        plan(4e9, HARDWARE, **wrong)  # type: ignore[arg-type]


def test_every_known_model_has_a_cost() -> None:
    assert {"laneformer-2b", "gpt-oss-120b", "Kimi-K2.6"} <= set(known_models())
    assert all(token_cost(name).weights > 0 and token_cost(name).layers > 0 for name in known_models())


def test_cost_of_a_preset_is_that_of_its_shape() -> None:
    cost = token_cost("tiny-llama", context=16)
    shape = bytes_per_token(load_preset("tiny-llama").config, 16)
    assert (cost.weights, cost.kv, cost.bytes) == (shape.weights, shape.kv, shape.total)


def test_cost_of_a_mixture_counts_kv_only_as_told() -> None:
    own = token_cost("Kimi-K2.6", context=1000)
    told = token_cost("Kimi-K2.6", context=1000, kv_bytes=73_728)
    assert (own.kv, told.kv) == (0.0, 73_728_000.0)
    assert own.weights == told.weights == active_model("Kimi-K2.6").bytes_per_token


@pytest.mark.parametrize(
    ("name", "gigabytes"), [("gpt-oss-20b", 3.708), ("gpt-oss-120b", 5.003), ("qwen3-30b-a3b", 6.084)]
)
def test_a_token_of_experts_reads_the_router_and_those_it_meets(name: str, gigabytes: float) -> None:
    """By hand: experts of 17 bytes for each 32 numbers (GPT-OSS) or of two bytes each, the rest two bytes."""
    assert token_cost(name).weights / 1e9 == pytest.approx(gigabytes, rel=2e-3)


def test_experts_that_are_chosen_and_packed_are_counted_to_the_byte() -> None:
    config = load_preset("tiny-experts").config
    dense = 2 * config.active_parameters
    matrices = 3 * 64 * 96 * config.layers * 2

    packed = bytes_per_token(config, 0, storage_of_preset(Storage.MXFP4)).weights

    assert bytes_per_token(config, 0).weights == dense
    assert dense - packed == 2 * matrices - matrices // 32 * 17


def test_a_window_bounds_the_cache_that_a_token_of_gpt_oss_reads() -> None:
    config = load_preset("gpt-oss-20b").config

    assert bytes_per_token(config, 4096).kv == 12 * (4096 + 128) * 2 * 512 * 2


def test_one_format_for_all_weights_replaces_the_models_own() -> None:
    cost = token_cost("Kimi-K2.6", weight_bytes=1.0, layers=10)
    assert (cost.weights, cost.layers) == (active_model("Kimi-K2.6").params, 10)


def test_cost_of_an_unknown_model_or_a_context_too_long_says_what_there_is() -> None:
    with pytest.raises(KeyError, match=r"laneformer-2b.*Kimi-K2.6"):
        token_cost("gpt-9")
    with pytest.raises(ValueError, match="laneformer-2b holds 0 to 4096"):
        token_cost("laneformer-2b", context=5000)


@pytest.mark.parametrize(
    ("driver_name", "gbs"),
    [
        ("NVIDIA H200", 4800.0),
        ("NVIDIA H100 80GB HBM3", 3350.0),
        ("NVIDIA H100 PCIe", 2000.0),
        ("NVIDIA H100 NVL", 3900.0),
        ("NVIDIA B200", 8000.0),
        ("AMD Instinct MI300X", 5300.0),
        ("AMD Instinct MI455X", 19600.0),
        ("AMD EPYC 9654", 0.0),
        ("NVIDIA GH2000", 0.0),
    ],
)
def test_a_drivers_device_name_finds_its_datasheet(driver_name: str, gbs: float) -> None:
    assert datasheet_gbs(driver_name) == gbs


def test_unknown_hardware_and_models_are_named_with_what_is_known() -> None:
    with pytest.raises(KeyError, match="H200"):
        hardware("H300")
    with pytest.raises(KeyError, match=r"Kimi-K2\.6"):
        active_model("gpt-9")


def test_measured_read_bandwidth_is_that_of_a_real_memory() -> None:
    assert 0.5 < measure_read_gbs(1, megabytes=64, rounds=2) < 5000


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for n in shape:
        size *= n
    return size

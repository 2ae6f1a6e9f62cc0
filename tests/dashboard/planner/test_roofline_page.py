"""The roofline page: the seeds' figures come out of its form, measured speeds stand beside them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/roofline/"


def rows(page: Any) -> dict[str, Any]:
    return {row.plan.hardware: row.plan for row in page.context["page"].rows}


def test_page_without_a_query_shows_the_preset_on_todays_and_tomorrows_hardware(client: Client) -> None:
    page = client.get(URL)
    assert page.status_code == 200
    assert set(rows(page)) == {"H100 SXM", "H200", "B200", "Rubin", "MI300X", "MI450"}
    assert page.context["page"].cost.name == "laneformer-2b"


@pytest.mark.slow
def test_ten_kernels_in_25_layers_show_1125_us_and_889_tok_s(client: Client) -> None:
    asked = {"model": "custom", "active": "2", "layers": "25", "kernels": "10", "launch_us": "4.5"}
    page = client.get(URL, asked)
    text = page.content.decode()
    assert '<span class="big">1,125</span> µs a token' in text
    assert '<span class="big">888.9</span> tok/s' in text
    five = client.get(URL, {**asked, "kernels": "5"}).context["page"]
    assert round(five.launch_tok_s, -2) == 1800


def test_2b_on_8_h200_has_a_ceiling_of_about_7700_as_published_and_of_9000_as_read_here(
    client: Client,
) -> None:
    asked = {"model": "custom", "active": "2", "layers": "25", "hardware": "H200"}
    (row,) = client.get(URL, {**asked, "bandwidth": "published"}).context["page"].rows
    assert round(row.plan.ceiling_tok_s, -2) == 7700 and round(row.plan.gbs, -2) == 30_700
    assert round(row.read_tok_s, -2) == 9000, "ours stands beside it"
    read = rows(client.get(URL, {**asked, "bandwidth": "read"}))["H200"]
    assert round(read.ceiling_tok_s, -2) == 9000


@pytest.mark.parametrize(
    ("model", "gpu", "tok_s", "step"),
    [
        ("Qwen3-Coder-Next", "H200", 3650, 50),
        ("Qwen3-Coder-Next", "MI300X", 4000, 50),
        ("gpt-oss-120b", "H200", 2200, 50),
        ("gpt-oss-120b", "MI300X", 2400, 50),
        ("DeepSeek-V4-Flash", "H200", 1160, 20),
        ("DeepSeek-V4-Flash", "MI300X", 1270, 20),
        ("Kimi-K2.6", "H200", 325, 5),
        ("Kimi-K2.6", "MI300X", 355, 5),
    ],
)
def test_mixtures_at_36_percent_match_the_published_projection(
    client: Client, model: str, gpu: str, tok_s: int, step: int
) -> None:
    asked = {"model": model, "hardware": gpu, "mbu": "36", "devices": "8", "bandwidth": "published"}
    row = rows(client.get(URL, asked))[gpu]
    assert abs(row.at_mbu_tok_s - tok_s) <= step


def test_50000_tokens_at_3000_tok_s_take_under_20_seconds(client: Client) -> None:
    asked = {"model": "custom", "active": "2", "layers": "25", "hardware": "MI300X", "bandwidth": "read"}
    asked = {**asked, "kernels": "1", "launch_us": "1", "mbu": "36", "tokens": "50000"}
    (row,) = client.get(URL, asked).context["page"].rows
    assert 16 < row.seconds < 20


def test_kv_and_weight_format_of_a_model_of_ones_own_count(client: Client) -> None:
    asked = {"model": "custom", "active": "3", "layers": "48", "weight_bytes": "1", "kv_kb": "24"}
    cost = client.get(URL, {**asked, "context": "1000"}).context["page"].cost
    assert (cost.weights, cost.kv) == (3e9, 24e6)


def test_measured_speeds_stand_in_the_plot_and_the_table(client: Client) -> None:
    old, new = factories.stored(tok_s=90, day=0), factories.stored(tok_s=100, day=1)
    page = client.get(URL)
    text = page.content.decode()
    assert len(page.context["page"].chart.measured) == 1, "only the newest of a configuration"
    assert new.get_absolute_url() in text and old.get_absolute_url() not in text
    assert "100.0 tok/s measured" in text


def test_speed_of_wrong_tokens_is_not_plotted(client: Client) -> None:
    verified = factories.result().verified
    factories.stored(verified=type(verified)("x", False, 1.0))
    assert client.get(URL).context["page"].chart.measured == ()


def test_machine_that_was_measured_is_a_row_as_it_stood(client: Client) -> None:
    factories.stored()
    row = rows(client.get(URL, {"devices": "8"}))["test device"]
    assert (row.devices, row.gbs) == (1, pytest.approx(0.5025))
    assert row.source.startswith("measured here on 2026-01-01")


def test_a_machine_keeps_the_best_of_its_last_readings(client: Client) -> None:
    idle = (factories.MeasuredDevice("test device", 0.0, 80.0),)
    busy = (factories.MeasuredDevice("test device", 0.0, 15.0),)
    factories.stored(day=0, devices=idle)
    factories.stored(day=1, devices=busy)
    assert rows(client.get(URL))["test device"].gbs == 80.0


def test_ones_own_gpu_is_a_row(client: Client) -> None:
    asked = {"own_name": "RTX 5090", "own_tbs": "1.79", "devices": "1"}
    row = rows(client.get(URL, asked))["RTX 5090"]
    assert (row.gbs, row.source) == (1790.0, "as entered")
    refused = client.get(URL, {"own_name": "RTX 5090"})
    assert refused.status_code == 400 and "how many TB/s one device reads" in refused.content.decode()


def test_utilisation_is_by_itself_what_was_measured_here(client: Client) -> None:
    assert client.get(URL).context["form"]["mbu"].value() == "36"
    factories.stored()
    assert client.get(URL).context["form"]["mbu"].value() == "40"


def test_the_smaller_of_memory_and_launches_is_bold(client: Client) -> None:
    asked = {"model": "custom", "active": "2", "layers": "25", "hardware": "H200", "mbu": "36"}
    by_launches = client.get(URL, asked)
    assert by_launches.context["page"].rows[0].launches_limit
    assert "<strong>888.9</strong>" in by_launches.content.decode()
    (by_memory,) = client.get(URL, {**asked, "kernels": "1"}).context["page"].rows
    assert not by_memory.launches_limit
    assert by_memory.seconds == pytest.approx(50_000 / by_memory.plan.at_mbu_tok_s)


def test_published_speeds_name_who_published_them(client: Client) -> None:
    text = client.get(URL).content.decode()
    assert "Kog, laneformer-2b on 8 × MI300X: 3,000 tok/s published" in text
    assert "Kog Inference Engine launch post, May 2026" in text


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"model": "custom"}, "Enter this for a model of your own"),
        ({"model": "laneformer-2b", "active": "3"}, "Counts only for a model of your own"),
        ({"model": "gpt-9"}, "Select a valid choice"),
        ({"context": "5000"}, "laneformer-2b holds 0 to 4096 tokens"),
        ({"mbu": "0"}, "greater than or equal to 0.1"),
        ({"mbu": "nan"}, "Enter a number"),
        ({"devices": "-1"}, "greater than or equal to 1"),
        ({"hardware": "H300"}, "There is no hardware “H300” here"),
    ],
)
def test_wrong_query_is_answered_at_its_field(client: Client, query: dict[str, str], message: str) -> None:
    page = client.get(URL, query)
    assert page.status_code == 400
    assert re.search(r'class="field-error"[^>]*>[^<]*' + re.escape(message), page.content.decode())


@pytest.mark.slow
def test_number_of_queries_does_not_grow(client: Client, django_assert_max_num_queries: Any) -> None:
    for context in range(1, 70):
        factories.stored(context=context)
    with django_assert_max_num_queries(4):
        page = client.get(URL)
    assert len(page.context["page"].measured) == 60

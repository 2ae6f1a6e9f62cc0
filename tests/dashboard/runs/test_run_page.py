"""The page of one run."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from django.test import Client

from dashboard.models import Measurement
from engine.measuring.measurement import Samples, Settings
from engine.timings import PhaseTime
from tests.dashboard import factories

pytestmark = pytest.mark.django_db


def page_of(client: Client, row: Measurement) -> str:
    response = client.get(row.get_absolute_url())
    assert response.status_code == 200
    return response.content.decode()


def text(html: str) -> str:
    """The page as a reader sees it: no tags, single spaces."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html))


def test_speed_comes_with_its_interval_and_n(client: Client) -> None:
    page = text(page_of(client, factories.stored(tok_s=3000)))
    assert "3,000 tok/s" in page
    assert "2,940 – 3,030, n = 5" in page


def test_several_streams_show_each_and_all_together(client: Client) -> None:
    samples = Samples(stream_tok_s=((99.0, 101.0),) * 5)
    decode = replace(factories.result().decode, samples=(100.0,) * 5)
    settings = Settings(16, 32, 5, streams=2)
    page = text(page_of(client, factories.stored(settings=settings, samples=samples, decode=decode)))
    assert re.search(r"200\.0 tok/s together, 2 streams: 99\.0+, 101\.0", page)


def test_mbu_is_given_twice(client: Client) -> None:
    page = text(page_of(client, factories.stored(mbu=factories.Mbu(0.71, 0.83))))
    assert "83.0 % of measured bandwidth" in page and "71.0 % of the datasheet" in page


def test_percentile_that_n_does_not_bound_says_so(client: Client) -> None:
    assert "n too small p99, n = 155" in text(page_of(client, factories.stored()))


def test_breakdown_shows_the_three_parts_as_bars_and_in_a_table(client: Client) -> None:
    page = page_of(client, factories.stored(tok_s=1000))
    assert page.count('<rect class="work"') == 3
    assert page.count('<rect class="wait_local"') == 2
    assert page.count('<rect class="wait_peer"') == 1
    assert "attention 200.0 30.0 40.0 270.0" in text(page)


def test_bars_keep_the_order_of_a_token(client: Client) -> None:
    phases = {"sample": PhaseTime(1.0), "qkv": PhaseTime(2.0), "embed": PhaseTime(3.0)}
    page = page_of(client, factories.stored(phases_us=phases))
    assert re.findall(r'<text class="name"[^>]*>(\w+)<', page) == ["embed", "qkv", "sample"]


def test_run_without_phases_says_why_there_is_no_chart(client: Client) -> None:
    assert "recorded no phases" in page_of(client, factories.stored(phases_us={}))


def test_wrong_tokens_are_announced_above_the_figures(client: Client) -> None:
    row = factories.stored(verified=factories.Verified("the reference", False, 0.5))
    page = page_of(client, row)
    assert page.index("tokens differ from the reference") < page.index('class="figures"')


def test_raw_samples_settings_and_environment_are_there(client: Client) -> None:
    page = text(page_of(client, factories.stored(tok_s=100)))
    assert "98.00, 100.00, 101.00, 99.50, 100.40 tok/s" in page
    assert "greedy, seed 0" in page
    assert "cpu.name test cpu" in page and "gpus not known" in page


def test_run_is_compared_with_the_one_before_it(client: Client) -> None:
    before = factories.stored(tok_s=100, day=1)
    factories.stored(tok_s=1, day=0)
    factories.stored(tok_s=1, day=1, context=99)
    page = page_of(client, factories.stored(tok_s=95, day=2))
    assert "−5.0" in page and before.get_absolute_url() in page


def test_json_is_the_document_itself(client: Client) -> None:
    row = factories.stored()
    assert client.get(f"/dashboard/runs/{row.pk}.json").json() == row.document


def test_csv_is_one_row(client: Client) -> None:
    row = factories.stored()
    assert client.get(f"/dashboard/runs/{row.pk}.csv").content.decode().count("\r\n") == 2


@pytest.mark.parametrize("key", ["999", "9" * 18, "9" * 23])
@pytest.mark.parametrize("end", ["/", ".json", "/trace.json"])
def test_unknown_run_is_not_found(client: Client, key: str, end: str) -> None:
    assert client.get(f"/dashboard/runs/{key}{end}").status_code == 404


def test_page_needs_no_inline_style_or_script(client: Client) -> None:
    page = page_of(client, factories.stored())
    assert not re.search(r"\sstyle=|\son\w+=|<style", page)
    tags = re.findall(r"<script[^>]*>", page)
    assert tags and all("nonce=" in tag for tag in tags)


def test_time_that_no_phase_accounts_for_is_told_from_the_raw_gaps(client: Client) -> None:
    gaps = Samples(itl_us=((10.0, 12.0), (11.0, 11.0)))
    row = factories.stored(phases_us={"qkv": PhaseTime(6.0), "head": PhaseTime(2.0)}, samples=gaps)
    assert "Mean inter-token latency outside all phases 3.0" in text(page_of(client, row))
    assert "outside all phases" not in page_of(client, factories.stored())

"""A run's page in a browser: the waterfall under the pointer and the keys, and its file."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.stack import Stack


@pytest.fixture
def waterfall(page: Page, loaded: Stack) -> Page:
    page.goto("/dashboard/runs/1/")
    page.locator(".waterfall").scroll_into_view_if_needed()
    expect(page.locator(".waterfall .readout")).to_have_text("900.2 µs on 132 lines.")
    return page


def test_the_keys_go_from_block_to_block_and_from_track_to_track(waterfall: Page) -> None:
    readout = waterfall.locator(".waterfall .readout")
    plot = waterfall.get_by_role("group", name="Waterfall;")
    plot.focus()
    plot.press("ArrowRight")
    expect(readout).to_have_text("track 0: qkv 0, work, 9 µs from 0 µs")
    plot.press("ArrowRight")
    expect(readout).to_contain_text("attention 0, wait on the same device")
    plot.press("ArrowDown")
    expect(readout).to_contain_text("track 1: attention 0")


def test_the_pointer_reads_out_the_block_under_it(waterfall: Page) -> None:
    canvas = waterfall.locator(".waterfall canvas")
    box = canvas.bounding_box()
    assert box is not None
    canvas.hover(position={"x": box["width"] / 2, "y": 100})
    expect(waterfall.locator(".waterfall .readout")).to_contain_text("µs from")


def test_zooming_in_keeps_the_page_still_and_show_all_goes_back(waterfall: Page) -> None:
    def picture() -> bytes:
        waterfall.wait_for_timeout(100)
        return waterfall.locator(".waterfall canvas").screenshot()

    whole = picture()
    waterfall.get_by_role("group", name="Zoom the waterfall").get_by_role("button", name="Zoom in").click()
    assert picture() != whole
    waterfall.get_by_role("group", name="Zoom the waterfall").get_by_role("button", name="Show all").click()
    assert picture() == whole


def test_the_trace_can_be_downloaded_for_perfetto(waterfall: Page, tmp_path: Path) -> None:
    with waterfall.expect_download() as download:
        waterfall.get_by_role("link", name="Chrome trace").click()
    download.value.save_as(tmp_path / "trace.json.gz")
    trace = json.loads(gzip.decompress((tmp_path / "trace.json.gz").read_bytes()))
    assert sum(event["ph"] == "X" for event in trace["traceEvents"]) == 132 * 90


def test_the_waterfall_s_legend_names_its_phases(waterfall: Page) -> None:
    names = waterfall.locator(".waterfall .legend li")
    expect(names).to_have_count(5)
    assert {"qkv", "attention", "down", "wait on the same device", "wait for a peer"} == set(
        names.all_inner_texts()
    )

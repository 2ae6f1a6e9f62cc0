"""The first thing on the overview: the fastest run of each model and hardware, beside others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from dashboard.measurements.peers import import_peers
from dashboard.overview.published import published_of
from dashboard.overview.summary import Fastest
from engine.measuring.measurement import MeasuredDevice, Settings
from engine.sampling import SamplingParams
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/"
H200 = (MeasuredDevice("NVIDIA H200", 4800.0, 4500.0),)


def rows(client: Client, query: str = "") -> list[Fastest]:
    found: list[Fastest] = client.get(f"{URL}{query}").context["summary"]
    return found


def peer(tmp_path: Path, **changes: Any) -> None:
    line = {"peer": "torch", "model": "test-model", "context": 16, "device": "test device", "samples": [50.0]}
    path = tmp_path / "peers.jsonl"
    path.write_text(json.dumps({**line, **changes}) + "\n", encoding="utf-8")
    import_peers(path=path)


def test_each_model_and_hardware_has_one_row_with_its_fastest_run(client: Client) -> None:
    factories.stored(context=16, tok_s=100)
    best = factories.stored(context=32, tok_s=120)
    other = factories.stored(model="another", tok_s=5000)
    assert [(row.model, row.newest.pk) for row in rows(client)] == [
        ("another", other.pk), ("test-model", best.pk),
    ]  # fmt: skip


def test_run_whose_tokens_differ_is_not_the_fastest(client: Client) -> None:
    right = factories.stored(context=16, tok_s=100)
    factories.stored(context=32, tok_s=900, verified=factories.Verified("a reference", False, None))
    assert [row.newest.pk for row in rows(client)] == [right.pk]


@pytest.mark.parametrize("other", [{"streams": 4}, {"cache": "fp8"}])
def test_what_is_no_headline_is_neither_the_fastest_nor_beside_others(
    client: Client, tmp_path: Path, other: dict[str, Any]
) -> None:
    shape: dict[str, Any] = {"model": "laneformer-2b", "devices": H200}
    usual = factories.stored(tok_s=100, **shape)
    odd = factories.stored(tok_s=900, settings=Settings(32, 32, 5, **other), **shape)
    peer(tmp_path, model="laneformer-2b", device="NVIDIA H200", context=32)
    (row,) = rows(client)
    assert (row.newest.pk, row.peer) == (usual.pk, None)
    assert not published_of(odd.configuration) and published_of(usual.configuration)


def test_peer_is_compared_at_its_own_context(client: Client, tmp_path: Path) -> None:
    factories.stored(context=16, tok_s=100)
    factories.stored(context=32, tok_s=120)
    peer(tmp_path, context=16)
    (row,) = rows(client)
    assert row.peer is not None
    assert (row.peer.times, row.peer.context, row.newest.tok_s) == (2.0, 16, 120)


def test_bars_stand_on_one_axis(client: Client, tmp_path: Path) -> None:
    factories.stored(tok_s=50, model="slow")
    factories.stored(tok_s=100)
    peer(tmp_path, samples=[200.0])
    assert {row.model: row.bar for row in rows(client)} == {"slow": 25, "test-model": 50}


def test_published_speed_of_the_same_shape_and_device_is_beside_it(client: Client) -> None:
    factories.stored(model="laneformer-2b", tok_s=1050, devices=H200, context=256)
    (row,) = rows(client)
    assert row.published is not None
    assert (row.published.times, row.published.name) == (0.5, "Kog, 8 × H200")


def test_variant_of_a_measured_preset_is_left_to_the_table_below(client: Client) -> None:
    factories.stored(model="laneformer-2b", tok_s=100)
    factories.stored(model="laneformer-2b-plain", tok_s=200)
    assert [row.model for row in rows(client)] == ["laneformer-2b"]


def test_sampled_speed_stands_beside_the_greedy_one(client: Client) -> None:
    factories.stored(tok_s=100)
    sampled = factories.stored(tok_s=90, sampling=SamplingParams(temperature=0.8))
    (row,) = rows(client)
    assert row.newest.tok_s == 100 and row.sampled == sampled
    assert "Sampled" in client.get(URL).content.decode()


@pytest.mark.slow
def test_it_is_on_the_first_page_only_and_follows_the_filters(client: Client) -> None:
    for number in range(14):
        factories.stored(model=f"m{number:02}", tok_s=100)
    assert len(rows(client)) == 14 and rows(client, "?page=2") == []
    assert [row.model for row in rows(client, "?model=m03")] == ["m03"]

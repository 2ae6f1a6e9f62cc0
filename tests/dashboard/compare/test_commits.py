"""Two commits over all configurations: pairs, verdicts, and the geometric mean."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/compare/commits/"
BASE, HEAD = "a" * 40, "b" * 40


def compared(client: Client) -> Any:
    return client.get(URL, {"base": BASE, "head": HEAD}).context["found"]


def test_geometric_mean_is_over_configurations_measured_at_both(client: Client) -> None:
    for context, before, after in ((1, 100, 200), (2, 100, 50), (3, 100, 100)):
        factories.stored(context=context, tok_s=before, git_sha=BASE)
        factories.stored(context=context, tok_s=after, git_sha=HEAD, day=1)
    factories.stored(context=4, git_sha=BASE)
    found = compared(client)
    assert found.mean == pytest.approx(1.0)
    assert [pair.times for pair in found.pairs] == [0.5, 1.0, 2.0]
    assert [pair.verdict for pair in found.pairs] == ["worse", "no clear change", "better"]
    assert (found.better, found.worse) == (1, 1)


def test_newest_verified_run_of_each_commit_counts(client: Client) -> None:
    factories.stored(tok_s=100, git_sha=BASE)
    factories.stored(tok_s=110, git_sha=HEAD, day=1)
    newest = factories.stored(tok_s=120, git_sha=HEAD, day=2)
    wrong = factories.Verified("a reference", False, None)
    factories.stored(tok_s=900, git_sha=HEAD, day=3, verified=wrong)
    (pair,) = compared(client).pairs
    assert pair.head == newest and pair.change == pytest.approx(0.2)


def test_change_within_the_intervals_is_not_clear(client: Client) -> None:
    factories.stored(tok_s=100, git_sha=BASE)
    factories.stored(tok_s=101, git_sha=HEAD, day=1)
    assert compared(client).pairs[0].verdict == "no clear change"


def test_page_offers_the_measured_commits_and_refuses_others(client: Client) -> None:
    factories.stored(git_sha=BASE)
    page = client.get(URL)
    assert page.status_code == 200 and "aaaaaaaaa (1 run)" in page.content.decode()
    refused = client.get(URL, {"base": BASE, "head": "c"})
    assert refused.status_code == 400 and "No run was measured at “c”" in refused.content.decode()


def test_without_a_common_configuration_it_says_so(client: Client) -> None:
    factories.stored(git_sha=BASE, context=1)
    factories.stored(git_sha=HEAD, context=2)
    page = client.get(URL, {"base": BASE, "head": HEAD}).content.decode()
    assert "No configuration has a verified run at both commits." in page


def test_queries_do_not_grow_with_the_configurations(
    client: Client, django_assert_max_num_queries: Any
) -> None:
    for context in range(1, 9):
        factories.stored(context=context, git_sha=BASE)
        factories.stored(context=context, git_sha=HEAD, day=1)
    with django_assert_max_num_queries(3):
        client.get(URL, {"base": BASE, "head": HEAD})

"""The audit log: every act has its line, and nobody can edit it."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboard.audit import log as audit
from dashboard.models import AuditEntry, Configuration, Label, MetricStatus, Trigger
from dashboard.sweeps import services
from tests.dashboard import factories
from tests.dashboard.regressions.test_services import GOOD, history
from tests.dashboard.test_admin import ADD, FORM

pytestmark = pytest.mark.django_db
URL = "/dashboard/audit/"


@pytest.fixture
def as_auditor(db: None) -> Client:
    user = User.objects.create_user("ada")
    user.user_permissions.add(Permission.objects.get(codename="view_auditentry"))
    client = Client()
    client.force_login(user)
    return client


def test_life_of_a_sweep_is_on_the_page_with_who_and_what(as_auditor: Client, operator: User) -> None:
    run = services.start_sweep(sweep=factories.sweep(), trigger=Trigger.PAGE, who=operator)
    services.cancel(run=run, who=operator)
    page = as_auditor.get(URL).content.decode()
    assert page.index("sweep cancelled</td>") < page.index("sweep started</td>"), "newest first"
    assert page.count(f'<a href="{run.get_absolute_url()}">') == 2
    assert "<td>operator</td>" in page


def test_null_character_never_reaches_the_database(as_auditor: Client) -> None:
    with CaptureQueriesContext(connection) as captured:
        assert as_auditor.get(URL, {"act": "sweep\0", "by": "a\0b"}).status_code == 200
    assert any("'ab'" in query["sql"] for query in captured)
    assert "\0" not in "".join(query["sql"] for query in captured)


def test_log_is_filtered_by_act_and_by_who(as_auditor: Client, operator: User) -> None:
    services.cancel(run=services.start_sweep(sweep=factories.sweep(), trigger=Trigger.SHELL), who=operator)
    assert "sweep started</td>" not in as_auditor.get(URL, {"act": "sweep cancelled"}).content.decode()
    assert "sweep cancelled</td>" not in as_auditor.get(URL, {"by": "a shell"}).content.decode()
    assert "No entry matches." in as_auditor.get(URL, {"by": "nobody"}).content.decode()


@pytest.mark.parametrize("who", ["client", "as_operator"])
def test_log_is_not_for_everybody(who: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(who)
    assert client.get(URL).status_code == 403


def test_defining_changing_and_deleting_a_sweep_is_written_down(as_admin: Client) -> None:
    as_admin.post(ADD, FORM)
    entry = AuditEntry.objects.get()
    assert (entry.by, entry.act, entry.about) == ("boss", "sweep defined", "nightly")
    assert entry.detail == "16 points, 5 repeats, at 30 2 * * *"
    as_admin.post(entry.url, {**FORM, "schedule_crontab": ""})
    assert AuditEntry.objects.first().detail.endswith("no schedule")  # type: ignore[union-attr]
    as_admin.post(entry.url.replace("change", "delete"), {"post": "yes"})
    assert AuditEntry.objects.first().act == "sweep deleted"  # type: ignore[union-attr]


def test_threshold_set_in_the_admin_is_written_down_and_judged_by(
    as_admin: Client, django_capture_on_commit_callbacks: object
) -> None:
    Configuration.objects.filter(pk=history(*GOOD).pk).update(threshold=0.3)
    configuration = history(*[95.0] * 4, start=len(GOOD))
    assert MetricStatus.objects.get(configuration=configuration, metric="tok_s").label != Label.REGRESSION
    url = f"/admin/dashboard/configuration/{configuration.pk}/change/"
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        assert as_admin.post(url, {"threshold": "0.02", "model": "other"}).status_code == 302
    configuration.refresh_from_db()
    assert (configuration.threshold, configuration.model) == (0.02, "test-model")
    assert AuditEntry.objects.filter(act="threshold changed", detail="2.0%", by="boss").exists()
    assert MetricStatus.objects.get(configuration=configuration, metric="tok_s").label == Label.REGRESSION


def test_threshold_outside_its_range_is_refused(as_admin: Client) -> None:
    configuration = history(100)
    url = f"/admin/dashboard/configuration/{configuration.pk}/change/"
    assert as_admin.post(url, {"threshold": "5"}).status_code == 200
    assert Configuration.objects.get().threshold is None


def test_log_cannot_be_edited_even_by_an_administrator(as_admin: Client) -> None:
    audit.record("sweep started", "x")
    url = f"/admin/dashboard/auditentry/{AuditEntry.objects.get().pk}/"
    assert as_admin.post(f"{url}delete/", {"post": "yes"}).status_code == 403
    assert as_admin.post(f"{url}change/", {"by": "somebody else"}).status_code == 403
    assert as_admin.get("/admin/dashboard/auditentry/").status_code == 200


def test_line_outlives_its_account(operator: User) -> None:
    audit.record("sweep started", "x", who=operator)
    operator.delete()
    entry = AuditEntry.objects.get()
    assert (entry.who, entry.by) == (None, "operator")


def test_act_that_no_filter_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of the acts"):
        audit.record("sweep eaten", "x")

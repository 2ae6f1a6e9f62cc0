"""Notes on a history: who may write and remove them, and how files bring them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from dashboard.measurements.importing import Imported, import_files
from dashboard.models import Annotation, AuditEntry, Configuration
from tests.dashboard import factories

pytestmark = pytest.mark.django_db
URL = "/dashboard/history/"
FIELDS = {"text": "new driver", "at": "2026-01-02T10:00", "git_sha": "", "configuration": ""}


@pytest.fixture
def key() -> int:
    return factories.stored().configuration_id


@pytest.fixture
def as_writer(db: None) -> Client:
    """May add notes and nothing else."""
    user = User.objects.create_user("writer", password="x")
    user.user_permissions.add(Permission.objects.get(codename="add_annotation"))
    client = Client()
    client.force_login(user)
    return client


def write(client: Client, key: int, **changes: str) -> Any:
    return client.post(f"{URL}notes/?configuration={key}", {**FIELDS, **changes}, follow=True)


def imported(folder: Path, *notes: object) -> Imported:
    path = folder / "notes.json"
    path.write_text(json.dumps({"notes": list(notes)}))
    return import_files(paths=[path])[0]


def test_a_person_with_the_permission_writes_a_note_and_sees_it_on_the_chart(
    as_writer: Client, key: int
) -> None:
    response = write(as_writer, key, configuration=str(key), git_sha="0123abc")
    page = response.content.decode()
    assert response.redirect_chain[-1][0] == f"{URL}?configuration={key}"
    assert "new driver" in page and "writer" in page
    note = Annotation.objects.get()
    assert (note.at.isoformat(), note.git_sha, note.configuration_id) == (
        "2026-01-02T10:00:00+00:00",
        "0123abc",
        key,
    )
    assert AuditEntry.objects.get(act="note added").by == "writer"


def test_a_note_without_a_configuration_is_on_every_history(as_writer: Client, key: int) -> None:
    write(as_writer, key)
    other = factories.stored(model="another").configuration_id
    assert "new driver" in as_writer.get(f"{URL}?configuration={other}").content.decode()


def test_a_note_on_another_configuration_is_not_shown(as_writer: Client, key: int) -> None:
    write(as_writer, key, configuration=str(key))
    other = factories.stored(model="another").configuration_id
    assert "new driver" not in as_writer.get(f"{URL}?configuration={other}").content.decode()


@pytest.mark.parametrize("who", ["client", "as_viewer"])
def test_without_the_permission_nothing_is_written_and_no_form_is_shown(
    key: int, who: str, request: pytest.FixtureRequest
) -> None:
    client: Client = request.getfixturevalue(who)
    assert write(client, key).status_code == 403
    assert not Annotation.objects.exists()
    assert "Add a note" not in client.get(f"{URL}?configuration={key}").content.decode()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"text": ""}, "Note: This field is required"),
        ({"text": "x" * 301}, "at most 300 characters"),
        ({"at": "soon"}, "Enter a valid date"),
        ({"git_sha": "<b>"}, "A commit is a git hash"),
        ({"configuration": "999"}, "Configuration: Select a valid choice"),
    ],
)
def test_a_note_that_makes_no_sense_is_refused_with_the_reason(
    as_writer: Client, key: int, changes: dict[str, str], reason: str
) -> None:
    page = write(as_writer, key, **changes).content.decode()
    assert "The note was not kept" in page and reason in page
    assert not Annotation.objects.exists()


def test_a_note_from_another_site_is_refused(as_writer: Client, key: int) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = as_writer.cookies
    assert strict.post(f"{URL}notes/", FIELDS).status_code == 403


def test_markup_in_a_note_is_shown_as_text(as_writer: Client, key: int) -> None:
    page = write(as_writer, key, text="</script><script>alert(1)</script>").content.decode()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_who_wrote_a_note_may_remove_it_and_others_may_not(
    as_writer: Client, as_viewer: Client, key: int
) -> None:
    write(as_writer, key)
    address = f"{URL}notes/{Annotation.objects.get().pk}/remove/"
    assert as_viewer.post(address).status_code == 403
    assert Client().post(address).status_code == 403
    assert as_writer.post(f"{address}?configuration={key}").status_code == 302
    assert not Annotation.objects.exists()
    assert AuditEntry.objects.filter(act="note removed", by="writer").exists()


def test_who_may_remove_any_note_removes_an_imported_one(as_admin: Client, key: int, tmp_path: Path) -> None:
    imported(tmp_path, {"at": "2026-01-02", "text": "from a file"})
    as_admin.post(f"{URL}notes/{Annotation.objects.get().pk}/remove/")
    assert not Annotation.objects.exists()


def test_notes_of_a_file_are_stored_once_on_the_configurations_that_they_name(
    key: int, tmp_path: Path
) -> None:
    factories.stored(model="another", context=99)
    notes = [
        {"at": "2026-01-02T10:00:00+00:00", "text": "everywhere"},
        {"at": "2026-01-03", "text": "there", "git_sha": "abc", "where": {"model": "another", "context": 99}},
    ]
    first, second = imported(tmp_path, *notes), imported(tmp_path, *notes)
    assert (first.added, first.known, second.added, second.known) == (2, 0, 0, 2)
    there = Annotation.objects.get(text="there")
    assert (there.configuration, there.source) == (Configuration.objects.get(model="another"), "notes.json")


@pytest.mark.parametrize(
    ("note", "reason"),
    [
        ({"text": "when?"}, "'at'"),
        ({"at": "soon", "text": "x"}, "soon"),
        ({"at": "2026-01-01", "text": ""}, "cannot be blank"),
        ({"at": "2026-01-01", "text": "x", "where": {"pk": 1}}, "`where` names pk"),
        ({"at": "2026-01-01", "text": "x", "where": {"context": "many"}}, "many"),
        ("nothing", "wrong form"),
    ],
)
def test_a_file_with_a_bad_note_is_refused_whole(key: int, tmp_path: Path, note: object, reason: str) -> None:
    outcome = imported(tmp_path, {"at": "2026-01-01", "text": "good"}, note)
    assert "note 2" in outcome.error and reason in outcome.error
    assert not Annotation.objects.exists()

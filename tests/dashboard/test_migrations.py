"""What migrations do to databases that earlier versions left."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import NOT_PROVIDED

from dashboard.models import Peer
from tests.dashboard.stack import database_in

peers_default = import_module("dashboard.migrations.0019_old_peers_get_their_default")


@pytest.fixture
def database(django_db_setup: None, django_db_blocker: Any, tmp_path: Path, migrated: Path) -> Iterator[None]:
    with django_db_blocker.unblock(), database_in(tmp_path / "db.sqlite3", migrated):
        yield


def default_in_the_table() -> str | None:
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, Peer._meta.db_table)
    [found] = [column.default for column in columns if column.name == "measures"]
    return found


@pytest.mark.usefixtures("database")
def test_a_table_of_peers_from_before_the_default_gets_it() -> None:
    now = Peer._meta.get_field("measures")
    before = now.clone()
    before.db_default = NOT_PROVIDED
    before.set_attributes_from_name("measures")
    before.model = Peer
    with connection.schema_editor() as editor:
        editor.alter_field(Peer, now, before)
    assert default_in_the_table() is None
    for _ in range(2):  # one that has it is left as it is
        with connection.schema_editor() as editor:
            peers_default.set_default(apps, editor)
        assert default_in_the_table() == "'decode'"

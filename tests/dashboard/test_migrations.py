"""What migrations do to databases that earlier versions left."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection
from django.db.migrations.executor import MigrationExecutor
from django.db.models import NOT_PROVIDED

from dashboard.models import Configuration, Measurement, Peer
from engine.measuring.measurement import Settings
from tests.dashboard import factories
from tests.dashboard.stack import database_in

peers_default = import_module("dashboard.migrations.0019_old_peers_get_their_default")


@pytest.fixture
def database(django_db_setup: None, django_db_blocker: Any, tmp_path: Path) -> Iterator[None]:
    with django_db_blocker.unblock(), database_in(tmp_path / "db.sqlite3"):
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


@pytest.mark.usefixtures("database")
def test_a_configuration_that_an_older_version_stores_has_a_cache_in_16_bits() -> None:
    """While the tables are new already, the processes that measure are not."""
    made = factories.stored().configuration
    fields = [
        field for field in Configuration._meta.local_concrete_fields if field.name not in ("id", "cache")
    ]
    columns = ", ".join(f'"{field.column}"' for field in fields if field.column != "tokens")
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO dashboard_configuration ({columns}, tokens)"  # noqa: S608
            f" SELECT {columns}, tokens + 1 FROM dashboard_configuration"
        )
    stored = Configuration.objects.exclude(pk=made.pk).get()
    assert (stored.cache, stored.tokens) == ("fp16", made.tokens + 1)


@pytest.mark.usefixtures("database")
def test_what_tells_the_cache_is_undone_once_other_caches_rows_are_gone() -> None:
    """As docs/operations.md says under "Updating and going back"."""
    factories.stored()
    factories.stored(settings=Settings(16, 32, 5, cache="fp8"))
    before = [("dashboard", "0019_old_peers_get_their_default")]
    with pytest.raises(IntegrityError):
        MigrationExecutor(connection).migrate(before)
    Measurement.objects.exclude(configuration__cache="fp16").delete()
    Configuration.objects.exclude(cache="fp16").delete()
    MigrationExecutor(connection).migrate(before)
    with connection.cursor() as cursor:
        columns = connection.introspection.get_table_description(cursor, "dashboard_configuration")
    assert "cache" not in [column.name for column in columns]

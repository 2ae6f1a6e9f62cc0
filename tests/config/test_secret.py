"""The kept secret key."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import ImproperlyConfigured

from config.secret import kept_secret


def test_it_is_made_once_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "home" / "secret_key"
    first = kept_secret(path)
    assert kept_secret(path) == first
    assert len(first) >= 50
    assert path.stat().st_mode & 0o777 == 0o600


def test_two_installations_have_different_keys(tmp_path):
    assert kept_secret(tmp_path / "a") != kept_secret(tmp_path / "b")


def test_processes_that_start_together_agree_and_leave_nothing_behind(tmp_path):
    path = tmp_path / "secret_key"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: kept_secret(path), range(64)))
    assert len(keys) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["secret_key"]


def test_a_cut_off_key_is_refused_with_the_way_out(tmp_path):
    path = tmp_path / "secret_key"
    path.write_text("short")
    with pytest.raises(ImproperlyConfigured, match="remove the file"):
        kept_secret(path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ImproperlyConfigured, match="set SECRET_KEY"):
        kept_secret(tmp_path / "file" / "secret_key")

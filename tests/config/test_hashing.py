"""Passwords are hashed a few at a time, and a wrong one is in the log."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher, check_password, identify_hasher, make_password

from config import hashing


def test_hashes_are_djangos_own():
    encoded = make_password("correct horse")
    assert encoded.startswith("pbkdf2_sha256$")
    assert identify_hasher(encoded).algorithm == PBKDF2PasswordHasher.algorithm
    assert check_password("correct horse", encoded)
    assert not check_password("wrong", encoded)


def test_many_guesses_at_once_wait_for_each_other(monkeypatch):
    running, most, lock = 0, 0, threading.Lock()

    def slow(*_: object, **__: object) -> str:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with lock:
            running -= 1
        return "pbkdf2_sha256$1$salt$x"

    monkeypatch.setattr(PBKDF2PasswordHasher, "encode", slow)
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda _: hashing.PatientHasher().encode("x", "salt"), range(12)))
    assert most == hashing.AT_ONCE


@pytest.mark.django_db
def test_a_wrong_password_is_in_the_log_without_the_password(client, caplog, settings):
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}
    with caplog.at_level(logging.WARNING, "dashboard.accounts.log"):
        client.post("/dashboard/sign-in/", {"username": "mallory", "password": "hunter2-guess"})
    said = " ".join(record.getMessage() for record in caplog.records)
    assert "sign_in_failed" in said
    assert "mallory" in said
    assert "127.0.0.1" in said
    assert "hunter2-guess" not in said

"""Which model a request's name stands for."""

from __future__ import annotations

import os

import pytest

from engine.serving.engines import EngineSpec
from engine.serving.served_models import ServedModels


def test_a_request_s_model_is_found_without_a_look_at_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    words, tiny = EngineSpec("words"), EngineSpec("random:tiny-llama")
    served = ServedModels([words, tiny])

    def fail(*_: object) -> None:
        raise AssertionError("a folder was listed for a request")

    for look in ("listdir", "scandir"):
        monkeypatch.setattr(os, look, fail)
    assert [served.find(name) for name in ("words", "tiny-llama", "random:tiny-llama")] == [words, tiny, tiny]
    assert served.find("unknown") is None

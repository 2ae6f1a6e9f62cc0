"""What tests of several commands begin with."""

from __future__ import annotations

import pytest

from engine.cli import bench, generate, score
from engine.models.catalogue import Model, open_model
from tests.engine.cli.commands import Letters


@pytest.fixture
def with_letters(monkeypatch: pytest.MonkeyPatch) -> Model:
    """The tiny random model, opened by the CLI, can read."""
    plain = open_model("random:tiny-llama")
    model = Model(plain.config, plain.weights, Letters(), plain.source, plain.digest)  # type: ignore[arg-type]
    for module in (generate, score, bench):
        monkeypatch.setattr(module, "model_of", lambda _args: model)
    return model

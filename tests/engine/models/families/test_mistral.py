"""Mistral's window, in the three ways that config.json can speak of it."""

from typing import Any

import pytest

from engine.errors import CheckpointError
from engine.models.checkpoints.fields import Fields
from engine.models.config import ModelConfig
from engine.models.families import family_of
from tests.engine.models.families.test_llama import ENTRIES


def read(**changes: Any) -> ModelConfig:
    return family_of("mistral").folder.read(Fields("config.json", {**ENTRIES, **changes}), "m")


def test_the_window_is_on_every_layer() -> None:
    assert read(sliding_window=512).windows == (512,) * 16


def test_a_file_that_does_not_speak_of_a_window_means_4096() -> None:
    assert read().windows == (4096,) * 16


def test_null_means_full_attention() -> None:
    assert read(sliding_window=None).windows == (0,) * 16


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(CheckpointError, match="sliding_window is 0; it must be at least 1, or null"):
        read(sliding_window=0)

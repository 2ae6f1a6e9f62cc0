"""Settings of the engine come from the environment, with types and defaults."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine import settings
from engine.errors import ConfigError


def test_home_is_var_beside_the_code_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MONOLANE_HOME", raising=False)
    assert settings.home() == Path(settings.__file__).parents[1] / "var"

    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    assert settings.home() == tmp_path
    assert settings.models_dir() == tmp_path / "models"


def test_a_relative_home_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MONOLANE_HOME", "state")

    assert settings.home() == tmp_path / "state"


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize(
    ("variable", "read", "default"),
    [
        ("MONOLANE_MODEL", settings.default_model, "smollm2-135m"),
        ("MONOLANE_BACKEND", settings.default_backend, "auto"),
        ("MONOLANE_DEVICES", settings.default_devices, 1),
        ("MONOLANE_MODELS", settings.more_models, []),
        ("MONOLANE_RESIDENT_MIB", settings.resident_bytes, None),
    ],
)
def test_unset_and_empty_mean_the_default(
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    read: Callable[[], object],
    default: object,
    value: str | None,
) -> None:
    monkeypatch.delenv(variable, raising=False)
    if value is not None:
        monkeypatch.setenv(variable, value)

    assert read() == default


def test_redis_is_the_embedded_server_of_this_home_unless_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert settings.redis_url() == f"unix://{tmp_path}/redis.sock"

    monkeypatch.setenv("REDIS_URL", "redis://example:1")
    assert settings.redis_url() == "redis://example:1"


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5"])
def test_a_number_of_devices_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MONOLANE_DEVICES", value)

    with pytest.raises(ConfigError, match=f"MONOLANE_DEVICES is '{value}'; it must be a whole number"):
        settings.default_devices()


@pytest.mark.parametrize(("given", "rows"), [("", 1), ("1", 1), ("8", 8)])
def test_a_worker_takes_one_request_at_once_unless_told(
    monkeypatch: pytest.MonkeyPatch, given: str, rows: int
) -> None:
    monkeypatch.setenv("MONOLANE_ROWS", given)
    assert settings.rows() == rows


@pytest.mark.parametrize("given", ["0", "9", "many", "-1"])
def test_a_number_of_rows_that_no_launch_has_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("MONOLANE_ROWS", given)
    with pytest.raises(ConfigError, match="it must be a whole number from 1 to 8"):
        settings.rows()


@pytest.mark.parametrize(("given", "form"), [("", None), ("fp16", "fp16"), ("fp8", "fp8")])
def test_keys_and_values_are_kept_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, given: str, form: str | None
) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", given)
    assert settings.cache_format() == form


def test_a_format_that_no_cache_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_CACHE", "int4")
    with pytest.raises(ConfigError, match="MONOLANE_CACHE is 'int4'; it must be fp16 or fp8"):
        settings.cache_format()


def test_a_child_inherits_the_environment_with_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")

    child = settings.child_environment(TMPDIR="/elsewhere")

    assert (child["KEPT"], child["TMPDIR"]) == ("1", "/elsewhere")


@pytest.mark.parametrize(("value", "meant"), [("", False), ("0", False), ("1", True)])
def test_fewer_devices_will_do_only_where_that_was_said(
    monkeypatch: pytest.MonkeyPatch, value: str, meant: bool
) -> None:
    monkeypatch.setenv("MONOLANE_FEWER_DEVICES", value)
    assert settings.fewer_devices() is meant


def test_a_yes_that_is_not_1_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_FEWER_DEVICES", "yes")
    with pytest.raises(ConfigError, match="it must be 0 or 1"):
        settings.fewer_devices()


def test_a_commit_is_told_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONOLANE_GIT_SHA", raising=False)
    assert settings.git_sha() == ""
    monkeypatch.setenv("MONOLANE_GIT_SHA", "0123abcd")
    assert settings.git_sha() == "0123abcd"


@pytest.mark.parametrize("value", ["main", "0123AB", "12345", "g" * 40, "a" * 65])
def test_what_is_no_commit_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("MONOLANE_GIT_SHA", value)
    with pytest.raises(ConfigError, match="MONOLANE_GIT_SHA is"):
        settings.git_sha()


@pytest.mark.parametrize(("given", "size"), [("", 8192 << 20), ("0", 0), ("100", 100 << 20)])
def test_the_room_for_decoded_weights_is_told_in_mib(
    monkeypatch: pytest.MonkeyPatch, given: str, size: int
) -> None:
    monkeypatch.setenv("MONOLANE_WEIGHTS_CACHE_MIB", given)
    assert settings.weights_cache_bytes() == size


def test_a_room_for_weights_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_WEIGHTS_CACHE_MIB", "8G")
    with pytest.raises(ConfigError, match="MONOLANE_WEIGHTS_CACHE_MIB is '8G'; it must be a whole number"):
        settings.weights_cache_bytes()


def test_further_models_are_separated_by_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_MODELS", "random:tiny-llama:1, /models/a.gguf,")
    assert settings.more_models() == ["random:tiny-llama:1", "/models/a.gguf"]


def test_memory_for_models_is_a_whole_number_of_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONOLANE_RESIDENT_MIB", "3")
    assert settings.resident_bytes() == 3 << 20
    monkeypatch.setenv("MONOLANE_RESIDENT_MIB", "much")
    with pytest.raises(ConfigError, match="MONOLANE_RESIDENT_MIB is 'much'"):
        settings.resident_bytes()

"""`models` and `pull`: what is here, how fast it may be, and how to get the rest."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from engine.cli import pull
from engine.errors import BackendUnavailable
from engine.models.checkpoints.write import write_checkpoint
from engine.models.presets import load_preset, preset_names
from engine.models.weights import RandomWeights
from tests.engine.cli.commands import run, run_json


def test_models_lists_what_is_here_and_how_to_get_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    by_name = {entry["name"]: entry for entry in run_json(capsys, "models")}
    assert by_name["tiny-llama"]["available"] is True
    assert by_name["laneformer-2b"]["params"] == 2_320_069_632
    _, out, _ = run(capsys, "models")
    assert all(name in out for name in by_name)


@pytest.fixture
def a_hundred_gbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of 20 GB and 100 GB/s, whatever this machine's is."""
    monkeypatch.setattr("engine.cli.models.read_gbs", lambda _backend: (100.0, "said so"))
    monkeypatch.setattr("engine.cli.models.memory_bytes", lambda _backend: 20_000_000_000)


@pytest.mark.usefixtures("a_hundred_gbs")
def test_models_describes_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = replace(load_preset("tiny-llama").config, family="qwen2", qkv_bias=True, tied_head=True)
    folder = write_checkpoint(RandomWeights(config), tmp_path / "m")

    facts = run_json(capsys, "models", str(folder))

    assert (facts["family"], facts["parameters"]) == ("qwen2", config.parameters)
    assert facts["weight_bytes_a_token"] == 2 * (config.parameters + config.hidden)
    assert facts["beyond_llama"] == ["biases on queries, keys and values"]
    assert facts["storage"] == ["F16"]
    _, out, _ = run(capsys, "models", "qwen3-8b")
    assert "family: qwen3\n" in out
    assert "parameters: 8,190,735,360\n" in out


@pytest.mark.usefixtures("a_hundred_gbs")
@pytest.mark.parametrize("name", [*preset_names(), "random:qwen3-8b:fp8_block", "random:qwen3-8b:q8_0"])
def test_models_says_how_fast_memory_lets_each_family_be(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("engine.cli.models.first_usable", lambda: "cpu")
    facts = run_json(capsys, "models", name)
    read = facts["weight_bytes_a_token_there"]
    routers_in_fp32 = 1.02 if "F32" in facts["storage_there"] else 1.0
    assert facts["weight_bytes_a_token"] <= read <= routers_in_fp32 * facts["weight_bytes_a_token"]
    assert facts["tok_s_at_most"] == round(100e9 / read, 1)
    full = read + facts["cache_bytes_a_token_at_full_context"]
    assert facts["tok_s_at_most_at_full_context"] == round(100e9 / full, 1)


@pytest.mark.usefixtures("a_hundred_gbs")
@pytest.mark.parametrize(("name", "says"), [("gpt-oss-20b", "yes"), ("qwen3-30b-a3b", "no")])
def test_models_says_whether_the_weights_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, says: str
) -> None:
    monkeypatch.setattr("engine.cli.models.first_usable", lambda: "cpu")
    facts = run_json(capsys, "models", name)
    assert facts["fits_one_device"] == f"{says}: it has 20.0 GB"
    assert facts["weight_bytes_there"] > facts["weight_bytes_a_token_there"]


@pytest.mark.usefixtures("a_hundred_gbs")
def test_models_counts_what_a_gpu_unpacks_as_it_lies_there(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.cli.models.first_usable", lambda: "cuda")
    facts = run_json(capsys, "models", "random:qwen3-8b:q8_0")
    assert facts["storage_there"] == ["F16", "Q8_0"]
    monkeypatch.setattr(
        "engine.cli.models.storages",
        lambda backend, _model: raised(BackendUnavailable(f"the backend {backend} lacks GELU")),
    )
    facts = run_json(capsys, "models", "tiny-llama")
    assert facts["not_here"] == "the backend cuda lacks GELU"


def raised(error: Exception) -> NoReturn:
    raise error


def test_pull_prints_where_the_weights_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pull, "pull", lambda name, _progress: Path("/models") / name)
    assert run(capsys, "pull", "smollm2-135m")[:2] == (0, "/models/smollm2-135m\n")
    assert run_json(capsys, "pull", "smollm2-135m")["path"] == "/models/smollm2-135m"

"""Pulling GGUF models, of which a repository of the Hub often holds a dozen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from engine.errors import CheckpointError
from engine.models.catalogue import list_models, name_of, needs_pull, open_model, pull
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights
from tests.engine.models.checkpoints.files import write_gguf
from tests.engine.models.checkpoints.hub_stand_in import COMMIT, REPOSITORY, StandIn, serving

WEIGHTS = RandomWeights(replace(load_preset("tiny-llama").config, ffn=192), 5)
KINDS = {"F16": gguf.GGMLQuantizationType.F16, "Q8_0": gguf.GGMLQuantizationType.Q8_0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Two in one file each, one in four files in a folder, and what is no model."""
    folder = tmp_path_factory.mktemp("gguf")
    for label, kind in KINDS.items():
        write_gguf(folder / f"Tiny-3-{label}.gguf", WEIGHTS, kind=kind)
    write_gguf(folder / "Tiny-3-BF16.gguf", WEIGHTS, kind=gguf.GGMLQuantizationType.BF16, tensors_a_part=12)
    found = {path.name: path.read_bytes() for path in folder.iterdir()}
    found = {("BF16/" if "BF16" in name else "") + name: content for name, content in found.items()}
    others = ("mmproj-F16.gguf", "imatrix.gguf", "README.md", "config.json")
    return found | dict.fromkeys(others, b"{}")


@pytest.fixture
def hub(tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path / "home"))
    with serving(dict(files)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


@pytest.mark.parametrize("choice", ["Q8_0", "q8_0", "Tiny-3-Q8_0", "Tiny-3-Q8_0.gguf"])
def test_a_model_is_named_by_the_end_of_its_file_s_name(hub: StandIn, choice: str) -> None:
    name = f"hf:{REPOSITORY}:{choice}"
    assert needs_pull(name)

    pull(name)

    model = open_model(name)
    assert model.config.name == name_of(name) == f"tiny-model:{choice}"
    np.testing.assert_allclose(model.weights.get("layers.1.wo"), WEIGHTS.get("layers.1.wo"), atol=1e-3)
    assert set(hub.sent) == {"Tiny-3-Q8_0.gguf"}


def test_a_model_in_several_files_of_a_folder_is_pulled_whole(hub: StandIn) -> None:
    pull(f"{REPOSITORY}:bf16")

    opened = open_model(f"hf:{REPOSITORY}@{COMMIT[:8]}:BF16")
    np.testing.assert_allclose(opened.weights.get("embed"), WEIGHTS.get("embed"), rtol=1e-2)
    assert len(hub.sent) == 4


def test_models_of_one_repository_lie_beside_each_other(hub: StandIn) -> None:
    for choice in ("Q8_0", "F16"):
        pull(f"{REPOSITORY}:{choice}")

    opened = [open_model(f"hf:{REPOSITORY}:{choice}") for choice in ("Q8_0", "F16")]
    assert opened[0].digest != opened[1].digest
    with pytest.raises(CheckpointError, match="tiny-model:BF16 is not on this machine: get it with"):
        open_model(f"hf:{REPOSITORY}:BF16")
    with pytest.raises(CheckpointError, match="tiny-model is not on this machine"):
        open_model(f"hf:{REPOSITORY}")


def test_what_was_pulled_is_in_the_list_of_models(hub: StandIn) -> None:
    for choice in ("Q8_0", "bf16"):
        pull(f"{REPOSITORY}:{choice}")

    found = {entry.name: entry for entry in list_models() if entry.name.startswith("hf:")}

    assert list(found) == [f"hf:{REPOSITORY}:bf16", f"hf:{REPOSITORY}:q8_0"]
    assert all(entry.available for entry in found.values())
    assert {entry.params for entry in found.values()} == {WEIGHTS.config.parameters}
    assert open_model(next(iter(found))).config.vocab == WEIGHTS.config.vocab


def test_which_models_there_are_is_said_where_one_has_to_be_chosen(hub: StandIn) -> None:
    with pytest.raises(CheckpointError, match=r"several GGUF files: .*tiny-model:BF16; .* BF16, F16, Q8_0$"):
        pull(REPOSITORY)
    with pytest.raises(CheckpointError, match=r"one GGUF file of 'Q4_K_M': name one, as in .*:BF16"):
        pull(f"{REPOSITORY}:Q4_K_M")
    assert not hub.sent


def test_the_only_one_needs_no_choice(hub: StandIn) -> None:
    for path in [path for path in hub.files if "F16" in path]:
        del hub.files[path]

    pull(REPOSITORY)

    assert open_model(f"hf:{REPOSITORY}").config.name == "tiny-model"


def test_a_repository_without_any_model_is_refused(hub: StandIn) -> None:
    hub.files = {"README.md": b"", "weights.bin": b"", "mmproj-F16.gguf": b""}

    with pytest.raises(CheckpointError, match=r"does not hold model\.safetensors, .* or a GGUF file"):
        pull(REPOSITORY)


def test_a_broken_download_of_a_part_goes_on_where_it_was(hub: StandIn) -> None:
    second = "BF16/Tiny-3-BF16-00002-of-00004.gguf"
    good = hub.files[second]
    hub.files[second] = good[:-1] + bytes([good[-1] ^ 1])
    with pytest.raises(CheckpointError, match=r"00002-of-00004\.gguf has the checksum"):
        pull(f"{REPOSITORY}:BF16")
    first = hub.sent["BF16/Tiny-3-BF16-00001-of-00004.gguf"]

    hub.files[second] = good
    pull(f"{REPOSITORY}:BF16")

    assert hub.sent["BF16/Tiny-3-BF16-00001-of-00004.gguf"] == first, "what was whole is not sent again"

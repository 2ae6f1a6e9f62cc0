"""Pulling from the Hugging Face Hub, against a server on this machine that answers as the Hub does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine.errors import CheckpointError, ConfigError
from engine.models.catalogue import needs_pull, open_model, pull
from engine.models.checkpoints.hub import parse_name
from engine.models.checkpoints.write import write_checkpoint
from engine.models.presets import load_preset
from engine.models.weights import RandomWeights
from tests.engine.models.checkpoints.hub_stand_in import BIG, COMMIT, REPOSITORY, StandIn, serving


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    folder = write_checkpoint(RandomWeights(load_preset("tiny-llama").config, 5), tmp_path / "source")
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"run_me.py": b"import os"}
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path / "home"))
    with serving(files) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def test_a_pulled_repository_opens_by_its_name(hub: StandIn) -> None:
    shown: list[tuple[int, int]] = []

    folder = pull(REPOSITORY, lambda one: shown.append((one.done, one.total)))

    model = open_model(f"hf:{REPOSITORY}")
    expected = RandomWeights(load_preset("tiny-llama").config, 5)
    np.testing.assert_array_equal(model.weights.get("layers.1.wq"), expected.get("layers.1.wq"))
    assert model.config.name == "tiny-model"
    assert {path.name for path in folder.iterdir()} == {"config.json", BIG}
    assert shown[-1][0] == shown[-1][1] == sum(len(hub.files[n]) for n in ("config.json", BIG))


def test_the_revision_is_pinned_to_its_commit(hub: StandIn) -> None:
    folder = pull(REPOSITORY)

    assert folder.name == COMMIT
    assert open_model(f"hf:{REPOSITORY}@{COMMIT[:10]}").source == str(folder)
    with pytest.raises(CheckpointError, match="ffff is not on this machine"):
        open_model(f"hf:{REPOSITORY}@ffff")


def test_a_second_pull_downloads_nothing(hub: StandIn) -> None:
    pull(REPOSITORY)
    sent = dict(hub.sent)

    pull(REPOSITORY)

    assert hub.sent == sent


def test_a_broken_download_goes_on_where_it_was(hub: StandIn) -> None:
    hub.cut = len(hub.files[BIG]) // 2
    with pytest.raises(CheckpointError, match=r"safetensors broke off after 317088 of 634176 bytes.*is kept"):
        pull(REPOSITORY)
    with pytest.raises(CheckpointError, match="is not on this machine: get it with"):
        open_model(f"hf:{REPOSITORY}")

    hub.cut, hub.down = None, False
    pull(REPOSITORY)

    assert hub.ranges[-1] == f"bytes={len(hub.files[BIG]) // 2}-"
    assert hub.sent[BIG] == len(hub.files[BIG])
    assert open_model(f"hf:{REPOSITORY}").config.parameters == load_preset("tiny-llama").config.parameters


def test_a_file_that_is_not_the_listed_one_is_thrown_away(hub: StandIn) -> None:
    good = hub.files[BIG]
    hub.files[BIG] = good[:-1] + bytes([good[-1] ^ 1])

    with pytest.raises(CheckpointError, match=r"model\.safetensors has the checksum \w+, the Hub lists"):
        pull(REPOSITORY)

    hub.files[BIG] = good
    assert open_model(str(pull(REPOSITORY))).config.vocab == 320


def test_a_repository_that_is_not_there_is_one_sentence(hub: StandIn) -> None:
    with pytest.raises(CheckpointError, match="someone/else could not be pulled"):
        pull("someone/else")


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:one",
        "hf:a/b/c",
        "hf:../etc",
        "hf:a/b@",
        "hf:a/b@x y",
        "hf:a/../b",
        "hf:a/b:",
        "hf:a/b:../c",
    ],
)
def test_a_name_that_is_none_is_refused_before_anything_is_asked(name: str) -> None:
    if name == "hf:a/b@":
        assert parse_name(name).hub.revision == ""
        return
    with pytest.raises(CheckpointError, match=r"is not owner/name, owner/name@revision or owner/name:file"):
        parse_name(name)


def test_the_token_goes_to_the_hub_and_not_where_it_redirects_to(
    hub: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.redirect = True

    pull(REPOSITORY)

    assert hub.tokens == {"/api": {"Bearer secret"}, "/someone": {"Bearer secret"}, "/elsewhere": {None}}


def test_an_endpoint_that_is_no_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")

    with pytest.raises(ConfigError, match="must start with https://"):
        pull(REPOSITORY)


def test_a_repository_needs_a_pull(hub: StandIn) -> None:
    assert needs_pull(f"hf:{REPOSITORY}")


def test_safetensors_that_the_index_does_not_name_are_left_there(hub: StandIn) -> None:
    """As in repositories that hold the model in another layout, too."""
    weight_map = dict.fromkeys(json.loads(_header(hub.files[BIG])), "part.safetensors")
    hub.files["part.safetensors"] = hub.files.pop(BIG)
    hub.files["consolidated.safetensors"] = b"the same once more"
    hub.files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()

    folder = pull(REPOSITORY)

    assert open_model(f"hf:{REPOSITORY}").config.vocab == 320
    assert not (folder / "consolidated.safetensors").exists()


def _header(file: bytes) -> bytes:
    return file[8 : 8 + int.from_bytes(file[:8], "little")].replace(b'"__metadata__":{"format":"pt"},', b"")

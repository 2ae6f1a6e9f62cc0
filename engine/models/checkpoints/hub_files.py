"""Which files of a repository of the Hugging Face Hub are one model."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from engine.errors import CheckpointError
from engine.models.checkpoints.gguf_split import split_stem
from engine.models.checkpoints.safetensors_file import INDEX, SINGLE

_BESIDE = ("*.json", "*.jinja", "LICENSE*")
"""What belongs to safetensors beside them. Never code."""
_FILE = re.compile(r"(?:[A-Za-z0-9][\w.-]{0,254}/)?[A-Za-z0-9][\w.-]{0,254}")
_NO_MODEL = ("mmproj*", "*imatrix*")
"""GGUF files that come beside models: what sees images, what guided a quantisation."""
_PARTING = "-._"
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class HubFile:
    path: str
    """In the repository: files of GGUF models often lie in a folder for each."""
    size: int
    sha256: str | None
    """Of files in large-file storage; others have the hash of their Git object."""
    git: str | None

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name

    @property
    def stem(self) -> str:
        """The name of the GGUF model that it is a part of."""
        return split_stem(self.name.removesuffix(".gguf"))


def choose_files(repository: str, files: Sequence[HubFile], choice: str) -> list[HubFile]:
    """The GGUF files that `choice` names, or else the safetensors, or else the one GGUF model there is.

    `choice` is how the name of the file ends, such as Q4_K_M, or all of it. Of safetensors all are chosen
    that may belong to the model: `without_spare` knows once the index is there. Raises CheckpointError if
    nothing is a model, or it takes a choice.
    """
    usable = [file for file in files if _FILE.fullmatch(file.path)]
    if not choice and any(file.path in (SINGLE, INDEX) for file in usable):
        return [file for file in usable if file.path == file.name and _is_of_folder(file.name)]
    models: dict[str, list[HubFile]] = {}
    for file in usable:
        if file.name.endswith(".gguf") and not any(fnmatch.fnmatch(file.name, no) for no in _NO_MODEL):
            models.setdefault(file.stem, []).append(file)
    found = [stem for stem in models if not choice or _means(choice, stem)]
    if len(found) == 1:
        return models[found[0]]
    if not models:
        kind = "a GGUF file" if choice else f"{SINGLE}, {INDEX} or a GGUF file"
        raise CheckpointError(f"{repository} does not hold {kind}, so there is no model to pull")
    labels = _labels(models)
    asked = f"does not hold one GGUF file of {choice!r}" if choice else "holds several GGUF files"
    raise CheckpointError(
        f"{repository} {asked}: name one, as in {repository}:{labels[0]}; there are"
        f" {', '.join(labels[:_SHOWN])}"
    )


def without_spare(files: Iterable[HubFile], shards: set[str] | None) -> list[HubFile]:
    """The files without safetensors that are no part of the model: some repositories hold it twice.

    `shards` are those that the index names, None where there is none.
    """
    parts = {SINGLE} if shards is None else shards
    return [file for file in files if not file.name.endswith(".safetensors") or file.name in parts]


def _is_of_folder(name: str) -> bool:
    return name.endswith(".safetensors") or any(fnmatch.fnmatch(name, pattern) for pattern in _BESIDE)


def _means(choice: str, stem: str) -> bool:
    """Whether `choice` is the name `stem`, or the end of it after a sign that parts words."""
    wanted, whole = split_stem(choice.removesuffix(".gguf")).casefold(), stem.casefold()
    return whole == wanted or (whole.endswith(wanted) and whole[-len(wanted) - 1] in _PARTING)


def _labels(stems: Iterable[str]) -> list[str]:
    """How each name differs from the others."""
    names = sorted(stems)
    first, last = names[0], names[-1] if len(names) > 1 else ""
    common = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(last))
    cut = max(first.rfind(sign, 0, common) for sign in "-.") + 1
    return [name[cut:] for name in names]

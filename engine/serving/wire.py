"""JSON of what processes exchange (msgspec), and what is wrong with a text that is none, in our words."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from engine.errors import RequestError

T = TypeVar("T")
_PLACE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_WANTED = re.compile(r"Expected `(?P<kinds>[^`]+)`(?P<bound>[^,]*)")
_FIELD = re.compile(r"Object (?P<fault>missing required|contains unknown) field `(?P<name>[^`]*)`")
_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "none",
}


def encode(value: Any) -> str:
    """JSON of structs, dataclasses and plain values. Raises RequestError if a text is not Unicode."""
    try:
        return _ENCODER.encode(value).decode()
    except UnicodeEncodeError as error:
        raise RequestError(f"a text is not Unicode: {error.object[error.start]!a} is half a pair") from error


def _plain(value: Any) -> Any:
    """NumPy's numbers."""
    return value.item()


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


def read(text: str, decoder: msgspec.json.Decoder[T]) -> T:
    """What `text` says, checked; fields that the type has not are passed over.

    Raises ValueError that names the field, what it is and what it must be; and what the type itself raises.
    """
    try:
        return decoder.decode(text)
    except msgspec.ValidationError as error:
        raise ValueError(_in_words(str(error), msgspec.json.decode(text))) from error


def read_strictly(text: str, decoder: msgspec.json.Decoder[T]) -> T:
    """The same where every field must be known."""
    found = read(text, decoder)
    if encode(found) == text:  # what this version writes has no field that it does not know
        return found
    if unknown := _unknown(msgspec.json.decode(text), msgspec.to_builtins(found)):
        raise ValueError(f"it has a field {unknown!r}, which this version does not know")
    return found


def _unknown(said: Any, known: Any) -> str:
    """The first field of `said`, at any depth, that `known` has not; empty if there is none."""
    if isinstance(said, dict) and isinstance(known, dict):
        for name, value in said.items():
            if name not in known:
                return str(name)
            if deeper := _unknown(value, known[name]):
                return deeper
    if isinstance(said, list) and isinstance(known, list | tuple):
        return next((bad for pair in zip(said, known, strict=True) if (bad := _unknown(*pair))), "")
    return ""


def _in_words(complaint: str, said: Any) -> str:
    """A sentence in place of msgspec's, with the value that it leaves out."""
    place = _PLACE.search(complaint)
    path = place["path"] if place else ""
    subject = path or "it"
    if field := _FIELD.match(complaint):
        return f"{subject} has no field {field['name']!r}"
    found = f"{subject} is {_at(said, path)!r:.80}"
    if wanted := _WANTED.match(complaint):
        kinds = " or ".join(_KINDS.get(kind, kind) for kind in wanted["kinds"].split(" | "))
        bound = wanted["bound"].partition(" - at ")[0]
        bound = bound.replace("<=", "of at most").replace(">=", "of at least")
        return f"{found}; it must be {kinds}{bound}"
    return f"{found}, which this version does not know"


def _at(said: Any, path: str) -> Any:
    """The value at a path such as `prompt.messages[0].role`; all of it if the path is not so simple."""
    found = said
    for name, index in re.findall(r"(\w+)|\[(\d+)\]", path):
        try:
            found = found[name] if name else found[int(index)]
        except (KeyError, IndexError, TypeError):
            return said
    return found

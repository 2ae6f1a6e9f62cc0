"""The C interface is what Python declares."""

from __future__ import annotations

from engine.backends.cpu.library import layout, open_library


def test_structs_and_enums_are_what_the_library_was_compiled_with() -> None:
    native, _ = open_library(None)
    lines = native.ml_layout().decode().splitlines()
    compiled = {name: int(value) for name, value in (line.split() for line in lines)}
    assert compiled == layout()

"""`pull` of what needs none: a deployment names its model once, whatever kind it is."""

from __future__ import annotations

import pytest

from engine.cli.app import main


@pytest.mark.parametrize("name", ["random:tiny-llama", "tiny-llama", "."])
def test_files_and_random_weights_need_no_pull(name, capsys):
    assert main(["pull", name]) == 0
    assert capsys.readouterr().out == f"{name} needs no pull\n"


def test_a_name_that_nobody_knows_is_still_an_error(capsys):
    assert main(["pull", "smollm3-135x"]) != 0

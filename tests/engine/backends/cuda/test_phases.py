"""Which of the kernels' ways a model goes, as measured."""

from __future__ import annotations

import pytest

from engine.backends.cuda.monokernel import layout_for
from engine.backends.cuda.options import parse_options
from engine.backends.cuda.tape import Matrix
from engine.models.catalogue import open_model

H200_SMS = 132


@pytest.mark.parametrize(
    ("name", "devices", "equal"),
    [
        ("gpt-oss-20b", 1, True),
        ("qwen3-30b-a3b", 1, True),
        ("qwen3-30b-a3b", 2, False),
        ("qwen3-8b:fp8_block", 1, True),
        ("qwen3-8b", 1, False),
    ],
)
def test_models_with_more_code_than_the_cache_holds_have_equal_shares_on_one_gpu(
    name: str, devices: int, equal: bool
) -> None:
    made = layout_for(open_model(f"random:{name}"), devices, H200_SMS, parse_options({})).plan
    for matrix in (Matrix.QKV, Matrix.ATTN_OUT, Matrix.DOWN):
        sizes = {shares[matrix].tiles for shares in made.shares}
        assert sizes == {0, max(sizes)} if equal else 0 not in sizes

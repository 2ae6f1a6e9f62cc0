"""Kernels are compiled side by side before anyone waits for them; none of it needs a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.backends.cuda.compile import compile_kernel
from engine.backends.cuda.monokernel import kernel_headers
from engine.backends.cuda.precompile import precompile
from engine.errors import BackendUnavailable
from engine.models.catalogue import open_model
from engine.progress import Progress, ignore_progress

OTHER = "// pack.cu needs no header: this one only makes it another source\n"


@pytest.mark.slow
def test_each_kernel_is_compiled_once_and_found_in_the_cache_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    heard: list[Progress] = []
    sources = [("pack.cu", ""), ("pack.cu", OTHER), ("pack.cu", "")]
    assert precompile(sources, heard.append) == 2
    assert [(one.done, one.total) for one in heard] == [(1, 2), (2, 2)]
    assert compile_kernel("pack.cu", OTHER).seconds == 0.0


def test_a_kernel_that_does_not_compile_is_an_error_here_already(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MONOLANE_HOME", str(tmp_path))
    with pytest.raises(BackendUnavailable, match=r"monokernel\.cu does not compile"):
        precompile([("monokernel.cu", "namespace model {}")], ignore_progress)


@pytest.mark.slow
def test_a_model_has_a_kernel_for_each_number_of_gpus_with_and_without_filters_and_profile() -> None:
    model = open_model("random:laneformer-2b")
    headers = [header for devices in (1, 2, 4, 8) for header in kernel_headers(model, devices, 132, {})]
    assert len(set(headers)) == 16
    assert "RANKS = 4;" in headers[8]
    assert ["PROFILE = true" in header for header in headers] == [False, False, True, True] * 4
    assert ["FILTERS = true" in header for header in headers] == [False, True] * 8

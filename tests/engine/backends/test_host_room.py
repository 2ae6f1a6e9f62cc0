"""A model that does not fit into this machine's memory says so before it is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine import processor
from engine.backends import open_backend
from engine.errors import DoesNotFit
from engine.models.catalogue import open_model
from engine.progress import Progress

GB = 1_000_000_000
Memory = Callable[[float, float], None]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """Sets all of this machine's memory and what is free of it, in GB."""

    def have(whole: float, free: float) -> None:
        monkeypatch.setattr("engine.backends.host_room.allowed_memory_bytes", lambda: int(whole * GB))
        monkeypatch.setattr("engine.backends.host_room.available_memory_bytes", lambda: int(free * GB))

    return have


@pytest.mark.parametrize(
    ("backend", "model", "whole", "remedy"),
    [
        (
            "numpy",
            "llama-3.1-8b",
            24,
            r"32\.1 GB .* on numpy.*: the backend cpu would fit \(about 16\.1 GB\)",
        ),
        (
            "cpu",
            "llama-3.1-8b",
            12,
            r"16\.1 GB .* on cpu, .*: a GGUF file in Q8_0 on cpu would fit \(about 8",
        ),
        ("cpu", "llama-3.1-8b", 6, r"6\.0 GB are free: a GGUF file in Q4_K_M on cpu would fit \(about 4\.5"),
        ("cpu", "gpt-oss-120b", 20, r"65\.\d GB of weights .*: it takes a machine with 65 GB or more"),
        ("cpu", "llama-3.1-8b", 3, "it takes a machine with 16 GB or more"),
    ],
)
def test_the_message_names_what_would_fit(
    memory: Memory, backend: str, model: str, whole: float, remedy: str
) -> None:
    memory(whole, whole)
    told: list[Progress] = []

    with pytest.raises(DoesNotFit, match=remedy) as refused:
        open_backend(backend, open_model(f"random:{model}"), progress=told.append)

    assert refused.value.even_alone
    assert not any(one.done for one in told if one.unit == "bytes"), "nothing was packed"


def test_what_others_have_taken_may_come_free(memory: Memory) -> None:
    memory(24, 10)

    with pytest.raises(DoesNotFit, match=r"of 24\.0 GB of memory 10\.0 GB are free: end what") as refused:
        open_backend("cpu", open_model("random:llama-3.1-8b"))

    assert not refused.value.even_alone


def test_experts_that_numpy_leaves_in_their_file_take_no_memory(memory: Memory) -> None:
    config = open_model("random:tiny-experts").config
    memory(*(2 * [4 * (config.parameters - 300_000) / GB]))

    open_backend("numpy", open_model("random:tiny-experts")).close()


def test_a_container_has_what_its_limit_leaves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, text in {"max": "4000\n", "current": "3000\n"}.items():
        (tmp_path / f"memory.{name}").write_text(text)
    (tmp_path / "memory.stat").write_text("anon 2000\nactive_file 500\ninactive_file 250\n")
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemAvailable:   20 kB\n")
    monkeypatch.setattr(processor, "_CONTAINER", tmp_path)
    monkeypatch.setattr(processor, "_MEMINFO", tmp_path / "meminfo")

    assert processor.available_memory_bytes() == 1750
    (tmp_path / "memory.max").write_text("max\n")
    assert processor.available_memory_bytes() == 20 * 1024

"""Other tools' results become peers where they compare with a single request, and say why where not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dashboard.measurements.foreign import Told, foreign_lines
from dashboard.measurements.importing import import_files
from dashboard.models import Peer
from engine.errors import MeasurementError

TOLD = Told("laneformer-2b", "NVIDIA H200", 256)
LLAMA_BENCH = {
    "build_commit": "0c1e5709", "model_filename": "models/smollm2-135m.gguf", "model_type": "llama 135M F16",
    "gpu_info": "NVIDIA H200", "cpu_info": "AMD EPYC", "n_prompt": 0, "n_gen": 128, "n_depth": 256,
    "samples_ts": [960.0, 965.0, 970.0],
}  # fmt: skip
VLLM = {
    "model_id": "meta-llama/Llama-3.2-1B", "max_concurrency": 1, "median_tpot_ms": 2.0,
    "input_lens": [30, 32, 34], "itls": [[0.002, 0.002], [0.001, 0.003], []],
}  # fmt: skip
GUIDELLM: dict[str, Any] = {
    "benchmarks": [
        {
            "config": {"strategy": {"type_": "synchronous"}},
            "requests": {"successful": [{"inter_token_latency_ms": 2.0, "prompt_tokens": 256}]},
        },
        {"config": {"strategy": {"type_": "throughput"}}, "requests": {"successful": []}},
    ]
}


def test_llama_bench_says_model_device_and_depth_itself() -> None:
    prompt = {**LLAMA_BENCH, "n_prompt": 512, "n_gen": 0}
    (line,) = foreign_lines([prompt, LLAMA_BENCH], Told()) or []
    assert line == {
        "peer": "llama.cpp 0c1e5709, llama 135M F16", "model": "smollm2-135m", "device": "NVIDIA H200",
        "context": 256, "samples": [960.0, 965.0, 970.0],
    }  # fmt: skip


def test_vllm_gives_one_sample_a_request_from_its_gaps() -> None:
    (line,) = foreign_lines([VLLM], Told(hardware="NVIDIA H200")) or []
    assert (line["model"], line["context"], line["samples"]) == ("llama-3.2-1b", 32, [500.0, 500.0])


def test_vllm_without_details_gives_its_median() -> None:
    (line,) = foreign_lines([{**VLLM, "itls": None}], TOLD) or []
    assert line["samples"] == [500.0]


def test_guidellm_gives_its_synchronous_benchmark() -> None:
    (line,) = foreign_lines([GUIDELLM], Told("m", "NVIDIA H200")) or []
    assert (line["peer"], line["context"], line["samples"]) == ("guidellm", 256, [500.0])


@pytest.mark.parametrize(
    ("document", "told", "reason"),
    [
        ({**LLAMA_BENCH, "n_gen": 0, "n_prompt": 512}, TOLD, "measured no generation alone"),
        ({**VLLM, "max_concurrency": 8}, TOLD, "max_concurrency is 8; a single request"),
        (VLLM, Told(), "does not name the device; give --hardware"),
        (GUIDELLM, Told(hardware="x"), "needs --model"),
        ({"benchmarks": GUIDELLM["benchmarks"][1:]}, TOLD, "no synchronous benchmark"),
        ({**LLAMA_BENCH, "samples_ts": ["fast"]}, TOLD, "missing or wrong"),
    ],
)
def test_what_does_not_compare_is_refused_with_the_reason(document: Any, told: Told, reason: str) -> None:
    with pytest.raises(MeasurementError, match=reason):
        foreign_lines([document], told)


def test_our_own_document_is_nobody_elses() -> None:
    assert foreign_lines([{"schema": 1}], TOLD) is None
    assert foreign_lines([], TOLD) is None


@pytest.mark.django_db
def test_file_of_llama_bench_is_imported_once(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    path.write_text(json.dumps([LLAMA_BENCH]))
    assert [(one.added, one.known) for one in import_files(paths=[path, path])] == [(1, 0), (0, 1)]
    assert Peer.objects.get().tok_s == 965.0

"""Results of other tools as peers: llama-bench, `vllm bench serve`, guidellm.

Only what compares with a single request's decode speed is taken: one request at a time, tokens after the
first. Of the rest a sentence says why it is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from statistics import median
from typing import Any

from engine.errors import MeasurementError

Line = dict[str, Any]
"""A line of a peers file: peer, model, context, device, samples."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a file does not say, and the importer was told: how we call its model, on what, which context."""

    model: str = ""
    hardware: str = ""
    context: int | None = None


def foreign_lines(documents: list[Any], told: Told) -> list[Line] | None:
    """The peers in a file's JSON values; None if no tool known here wrote them.

    Raises MeasurementError if the file has nothing to compare with, or does not say what it must.
    """
    first = documents[0] if documents and isinstance(documents[0], Mapping) else None
    if first is None:
        return None
    try:
        if "samples_ts" in first and "n_gen" in first:
            return _llama_bench(documents, told)
        if "median_tpot_ms" in first and "model_id" in first:
            return [_vllm(first, told)]
        if "benchmarks" in first and isinstance(first["benchmarks"], list):
            return _guidellm(first["benchmarks"], told)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        raise MeasurementError(f"a field of the other tool's file is missing or wrong: {error!r}") from error
    return None


def _llama_bench(rows: Iterable[Mapping[str, Any]], told: Told) -> list[Line]:
    """Rows that generate only; `n_depth` is the context that stood before."""
    lines = []
    for row in rows:
        if row["n_gen"] > 0 and not row["n_prompt"]:
            model = told.model or PurePath(str(row["model_filename"])).stem
            hardware = told.hardware or str(row.get("gpu_info") or row["cpu_info"])
            context = told.context if told.context is not None else int(row.get("n_depth", 0))
            peer = f"llama.cpp {row['build_commit']}, {row.get('model_type', '')}".rstrip(", ")
            lines.append(_line(peer, model, hardware, context, row["samples_ts"]))
    if not lines:
        raise MeasurementError("llama-bench measured no generation alone; run it with -p 0 -n 128")
    return lines


def _vllm(result: Mapping[str, Any], told: Told) -> Line:
    if result.get("max_concurrency") != 1:
        raise MeasurementError(
            f"max_concurrency is {result.get('max_concurrency')}; a single request's speed needs"
            " `vllm bench serve --max-concurrency 1`"
        )
    gaps = [gaps for gaps in result.get("itls") or [] if gaps]
    samples = [len(each) / sum(each) for each in gaps] or [1000.0 / result["median_tpot_ms"]]
    context = told.context if told.context is not None else round(median(result["input_lens"]))
    model = told.model or str(result["model_id"]).rsplit("/", 1)[-1].lower()
    return _line("vLLM", model, _needed_hardware(told, "vLLM"), context, samples)


def _guidellm(benchmarks: Iterable[Mapping[str, Any]], told: Told) -> list[Line]:
    lines = []
    for benchmark in benchmarks:
        if benchmark["config"]["strategy"]["type_"] == "synchronous":
            done = [r for r in benchmark["requests"]["successful"] if r["inter_token_latency_ms"]]
            samples = [1000.0 / request["inter_token_latency_ms"] for request in done]
            prompts = [request["prompt_tokens"] for request in done]
            known = told.context if told.context is not None else round(median(prompts))
            if not told.model:
                raise MeasurementError("a guidellm report needs --model, our name of what it measured")
            lines.append(_line("guidellm", told.model, _needed_hardware(told, "guidellm"), known, samples))
    if not lines:
        raise MeasurementError(
            "the guidellm report has no synchronous benchmark; run it with `--rate-type synchronous`"
        )
    return lines


def _needed_hardware(told: Told, tool: str) -> str:
    if not told.hardware:
        raise MeasurementError(f"a result of {tool} does not name the device; give --hardware")
    return told.hardware


def _line(peer: str, model: str, hardware: str, context: int, samples: Iterable[float]) -> Line:
    return {
        "peer": peer, "model": model, "device": hardware, "context": context,
        "samples": [round(float(sample), 4) for sample in samples],
    }  # fmt: skip

"""The objects of the API's answers, as dictionaries ready for JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engine.serving.messages import Heartbeat, Timings
from playground.api.parameters import ApiRequest


def model_object(name: str, workers: list[Heartbeat], created: int) -> dict[str, Any]:
    """One entry of /v1/models, with what its workers can do."""
    serving = [worker for worker in workers if worker.model == name]
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "monolane",
        "context_length": max(worker.context for worker in serving),
        "chat": any(worker.chat for worker in serving),
        "infill": any(worker.infill for worker in serving),
        "backends": sorted({worker.backend for worker in serving}),
    }


def usage(timings: Timings) -> dict[str, Any]:
    """OpenAI's counts, and Groq's times in seconds."""
    return {
        "prompt_tokens": timings.prompt_tokens,
        "completion_tokens": timings.completion_tokens,
        "total_tokens": timings.prompt_tokens + timings.completion_tokens,
        "queue_time": timings.queue_ms / 1000,
        "prompt_time": timings.prefill_ms / 1000,
        "completion_time": timings.decode_ms / 1000,
        "total_time": (timings.queue_ms + timings.prefill_ms + timings.decode_ms) / 1000,
    }


def whole_answer(
    request: ApiRequest, model: str, text: str, finish_reason: str, timings: Timings
) -> dict[str, Any]:
    """The answer to a request that does not stream."""
    if request.chat:
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
    else:
        choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": finish_reason}
    return {
        "id": request.id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": request.created,
        "model": model,
        "choices": [choice],
        "usage": usage(timings),
        "timings": asdict(timings),
    }


def chunk(
    request: ApiRequest,
    model: str,
    *,
    role: bool = False,
    text: str | None = None,
    finish_reason: str | None = None,
    timings: Timings | None = None,
) -> dict[str, Any]:
    """One event of a stream. `timings` goes with the last one that has a choice."""
    choice: dict[str, Any]
    if request.chat:
        delta = {**({"role": "assistant", "content": ""} if role else {}), **_content(text)}
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    else:
        choice = {"index": 0, "text": text or "", "logprobs": None, "finish_reason": finish_reason}
    return {**_frame(request, model, [choice]), **({"timings": asdict(timings)} if timings else {})}


def usage_chunk(request: ApiRequest, model: str, timings: Timings) -> dict[str, Any]:
    """The event after the last choice, where the client asked for usage."""
    return {**_frame(request, model, []), "usage": usage(timings)}


def _content(text: str | None) -> dict[str, str]:
    return {} if text is None else {"content": text}


def _frame(request: ApiRequest, model: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
    frame: dict[str, Any] = {
        "id": request.id,
        "object": "chat.completion.chunk" if request.chat else "text_completion",
        "created": request.created,
        "model": model,
        "choices": choices,
    }
    return {**frame, "usage": None} if request.include_usage else frame

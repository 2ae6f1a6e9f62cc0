"""The objects of the API's answers, as dictionaries ready for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine.serving.messages import Done, Heartbeat, Scored
from engine.timings import Timings
from playground.api import logprobs
from playground.api.parameters import ApiRequest


def model_object(name: str, workers: list[Heartbeat], created: int) -> dict[str, Any]:
    """One entry of /v1/models, with what its workers can do, and whether one of them has it in memory now."""
    serving = [worker for worker in workers if worker.find(name)]
    offers = [offer for worker in serving if (offer := worker.find(name))]
    context = max(offer.context for offer in offers)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "monolane",
        **({"context_length": context} if context else {}),
        "chat": any(offer.chat for offer in offers),
        "infill": any(offer.infill for offer in offers),
        "loaded": any(offer.state == "loaded" for offer in offers),
        "backends": sorted({worker.backend for worker in serving}),
    }


@dataclass
class Choice:
    """What has come of one choice of an answer that is sent as a whole."""

    text: list[str] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    done: Done | None = None


def whole_answer(request: ApiRequest, choices: Sequence[Choice]) -> dict[str, Any]:
    """The answer to a request that does not stream. Every choice must be done.

    `timings` stands beside a single choice, and in each of several.
    """
    ends = [choice.done for choice in choices if choice.done is not None]
    objects = [
        _whole_choice(request, index, choice, done)
        for index, (choice, done) in enumerate(zip(choices, ends, strict=True))
    ]
    timings = [msgspec.to_builtins(done.timings) for done in ends]
    if len(objects) > 1:
        objects = [{**one, "timings": times} for one, times in zip(objects, timings, strict=True)]
    return {
        "id": request.id,
        "object": "chat.completion" if request.chat else "text_completion",
        "created": request.created,
        "model": request.model,
        "choices": objects,
        "usage": usage(request, [done.timings for done in ends]),
        **({"timings": timings[0]} if len(objects) == 1 else {}),
    }


def _whole_choice(request: ApiRequest, index: int, choice: Choice, done: Done) -> dict[str, Any]:
    text = "".join(choice.text) + done.text
    said = {"message": {"role": "assistant", "content": text, "refusal": None}}
    scored = request.choices[index].logprobs is not None
    return {
        "index": index,
        **(said if request.chat else {"text": text}),
        "logprobs": logprobs.whole(choice.scores, chat=request.chat) if scored else None,
        "finish_reason": done.finish_reason,
    }


def counts(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def usage(request: ApiRequest, timings: Sequence[Timings]) -> dict[str, Any]:
    """OpenAI's counts, and Groq's times in seconds, of all choices together.

    A prompt counts once, however many choices it has. The queue's time is that of the choice that began
    first, as later ones wait for the earlier.
    """
    prompt = sum(one.prompt_tokens for one in timings[:: request.n])
    completion = sum(one.completion_tokens for one in timings)
    queue_s = min(one.queue_ms for one in timings) / 1000
    prompt_s = sum(one.prefill_ms for one in timings) / 1000
    completion_s = sum(one.decode_ms for one in timings) / 1000
    cached = sum(one.cached_tokens for one in timings[:: request.n])
    return {
        **counts(prompt, completion),
        "prompt_tokens_details": {"cached_tokens": cached},
        "queue_time": queue_s,
        "prompt_time": prompt_s,
        "completion_time": completion_s,
        "total_time": queue_s + prompt_s + completion_s,
    }


def chunk(
    request: ApiRequest,
    index: int,
    *,
    role: bool = False,
    text: str | None = None,
    scores: dict[str, Any] | None = None,
    done: Done | None = None,
    counts: dict[str, int] | None = None,
) -> dict[str, Any]:
    """One event of a stream, about one choice. The choice's last one, of `done`, has its `timings`.

    `counts` are the choice's tokens so far, for a client that wants them with every chunk.
    """
    content = {} if text is None else {"content": text}
    said = {"delta": {**({"role": "assistant", "content": ""} if role else {}), **content}}
    choice = {
        "index": index,
        **(said if request.chat else {"text": text or ""}),
        "logprobs": scores,
        "finish_reason": done.finish_reason if done else None,
    }
    frame = _frame(request, [choice])
    if request.usage.on_every_chunk:
        frame["usage"] = counts
    return {**frame, **({"timings": msgspec.to_builtins(done.timings)} if done else {})}


def usage_chunk(request: ApiRequest, timings: Sequence[Timings]) -> dict[str, Any]:
    """The event after the last choice, where the client asked for usage."""
    return {**_frame(request, []), "usage": usage(request, timings)}


def _frame(request: ApiRequest, choices: list[dict[str, Any]]) -> dict[str, Any]:
    frame: dict[str, Any] = {
        "id": request.id,
        "object": "chat.completion.chunk" if request.chat else "text_completion",
        "created": request.created,
        "model": request.model,
        "choices": choices,
    }
    return {**frame, "usage": None} if request.usage.at_the_end else frame

"""The frames of `/ws/playground/`: what a page may say, what it hears, and how both are written as JSON.

`ack` and `after` count tokens: `seq + n` of the last frame that the page has shown.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from engine import replies
from engine.models.prompt import Prompt
from engine.progress import Progress
from engine.replies import Reply
from engine.sampling import SamplingParams
from engine.serving import wire
from engine.serving.messages import Done, Failed, GenerateRequest, Heartbeat, ServedModel, Started, Tokens
from engine.serving.tokenizer_service import Tokenized
from playground.limits import BODY_BYTES, DEFAULTS, LIMITS
from playground.validation import (
    Invalid,
    check_prompt_size,
    kind_of,
    messages_of,
    sampling_of,
    shown,
    stop_of,
    text_of,
    whole_of,
)

TOO_SLOW = 4408
"""Close code: the page has not acknowledged what it was sent."""
INTERNAL = 1011
"""Close code: a fault of the server."""
GENERATION_ID = re.compile(r"[0-9a-f]{32}")
_DEFAULT_SAMPLING = SamplingParams(**{**DEFAULTS["sampling"], "seed": 0})


# What a page says -----------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Start:
    request: GenerateRequest


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Ack:
    seq: int


@dataclass(frozen=True, slots=True)
class Resume:
    generation: str
    after: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many tokens has a prompt for a model?"""

    prompt: Prompt
    model: str


ClientFrame = Start | Stop | Ack | Resume | Count


def parse_client_frame(text: str) -> ClientFrame:
    """The frame in `text`. Raises Invalid, whose code and message go back to the page."""
    if len(text) > BODY_BYTES:
        raise Invalid(
            f"the frame has {len(text):,} characters; at most {BODY_BYTES:,} are taken",
            reply=replies.TOO_LARGE,
        )
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Invalid(f"the frame is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise Invalid(f"the frame is {kind_of(data)}; it must be an object with a type")
    match data.get("type"):
        case "start":
            return Start(_generate_request(data))
        case "stop":
            return Stop()
        case "ack":
            return Ack(_count(data, "seq"))
        case "resume":
            return Resume(_generation_id(data), _count(data, "after"))
        case "count":
            return Count(_prompt(data), text_of(data, "model", default="") or "")
        case unknown:
            raise Invalid(f"type is {shown(unknown)}; allowed are start, stop, ack, resume, count", "type")


def new_generation_id() -> str:
    """Unguessable: whoever knows it from elsewhere still needs the session that owns it."""
    return secrets.token_hex(16)


def _generate_request(data: Mapping[str, Any]) -> GenerateRequest:
    sampling = {} if data.get("sampling") is None else data["sampling"]
    if not isinstance(sampling, dict):
        raise Invalid(f"sampling is {kind_of(sampling)}; it must be an object", "sampling")
    return GenerateRequest(
        id=new_generation_id(),
        prompt=_prompt(data),
        model=text_of(data, "model", default="") or "",
        worker=text_of(data, "worker", default="") or "",
        max_tokens=whole_of(data, "max_tokens", 1, LIMITS.max_tokens) or DEFAULTS["max_tokens"],
        sampling=sampling_of(sampling, _DEFAULT_SAMPLING),
        stop=stop_of(data.get("stop")),
    )


def _prompt(data: Mapping[str, Any]) -> Prompt:
    text, suffix = text_of(data, "prompt"), text_of(data, "suffix")
    if (text is None) == (data.get("messages") is None):
        raise Invalid("a start frame has either a prompt or messages", "prompt")
    if text is not None:
        check_prompt_size(text, suffix)
        return Prompt(text=text, suffix=suffix)
    if suffix is not None:
        raise Invalid("a suffix goes with a prompt, not with messages", "suffix")
    messages = messages_of(data["messages"])
    check_prompt_size(*(message.content for message in messages))
    return Prompt(messages=messages)


def _generation_id(data: Mapping[str, Any]) -> str:
    value = data.get("generation")
    if not isinstance(value, str) or not GENERATION_ID.fullmatch(value):
        raise Invalid(
            f"generation is {shown(value)}; it must be the id that a queued frame gave", "generation"
        )
    return value


def _count(data: Mapping[str, Any], name: str) -> int:
    value = whole_of(data, name, 0, 2**53)
    if value is None:
        raise Invalid(f"{name} is missing; it counts the tokens that the page has shown", name)
    return value


# What a page hears ----------------------------------------------------------------------------------
class ModelStatus(TypedDict):
    """One of the models that a worker serves; `detail` says how far its loading is, or why it failed."""

    name: str
    state: str
    chat: bool
    infill: bool
    context: int
    detail: str


class WorkerStatus(TypedDict):
    name: str
    model: str
    backend: str
    devices: list[str]
    state: str
    chat: bool
    infill: bool
    context: int
    parallelism: str
    lanes: int
    sync: str
    link: str
    last_tok_s: float
    rows: int
    in_hand: int
    tok_s: float
    models: list[ModelStatus]


class StatusFrame(TypedDict):
    type: Literal["status"]
    workers: list[WorkerStatus]


class QueuedFrame(TypedDict):
    type: Literal["queued"]
    generation: str
    position: int
    eta_s: float | None


class StartedFrame(TypedDict):
    type: Literal["started"]
    generation: str
    model: str
    backend: str
    worker: str
    prompt_tokens: int
    queue_ms: float
    seed: int


class PrefillFrame(TypedDict):
    """How far the reading of a long prompt is, in tokens."""

    type: Literal["prefill"]
    generation: str
    done: int
    total: int


class WaitingFrame(TypedDict):
    """A worker has it, and what it waits for: its model, or memory."""

    type: Literal["waiting"]
    generation: str
    why: str


class CountFrame(TypedDict):
    """The answer to a count; null where no worker could say."""

    type: Literal["count"]
    tokens: int | None
    context: int | None


class TokensFrame(TypedDict):
    type: Literal["tokens"]
    generation: str
    seq: int
    n: int
    text: str
    t_us: int


class DoneFrame(TypedDict):
    type: Literal["done"]
    generation: str
    finish_reason: str
    text: str
    timings: dict[str, float]


class ErrorFrame(TypedDict):
    type: Literal["error"]
    code: str
    message: str
    retryable: bool
    generation: NotRequired[str]
    retry_after_s: NotRequired[int]


ServerFrame = (
    StatusFrame
    | QueuedFrame
    | StartedFrame
    | PrefillFrame
    | WaitingFrame
    | TokensFrame
    | DoneFrame
    | ErrorFrame
    | CountFrame
)


def encode(frame: ServerFrame) -> str:
    return wire.encode(frame)


def status_frame(workers: list[Heartbeat]) -> StatusFrame:
    return {"type": "status", "workers": [worker_status(worker) for worker in workers]}


def worker_status(worker: Heartbeat) -> WorkerStatus:
    return {
        "name": worker.name,
        "model": worker.model,
        "backend": worker.backend,
        "devices": list(worker.devices),
        "state": worker.state,
        "chat": worker.chat,
        "infill": worker.infill,
        "context": worker.context,
        "parallelism": worker.parallelism,
        "lanes": worker.lanes,
        "sync": worker.sync,
        "link": worker.link,
        "last_tok_s": worker.last_tok_s,
        "rows": worker.rows,
        "in_hand": worker.in_hand,
        "tok_s": worker.tok_s if worker.rows > 1 else 0.0,  # else a stream's own speed says it
        "models": [_model_status(model) for model in worker.served],
    }


def _model_status(model: ServedModel) -> ModelStatus:
    return {
        "name": model.name,
        "state": model.state,
        "chat": model.chat,
        "infill": model.infill,
        "context": model.context,
        "detail": model.detail if model.state == "loading" else "",  # an error may name a path
    }


def queued_frame(generation: str, position: int, eta_s: float | None) -> QueuedFrame:
    return {"type": "queued", "generation": generation, "position": position, "eta_s": eta_s}


def started_frame(generation: str, started: Started, seed: int) -> StartedFrame:
    return {
        "type": "started",
        "generation": generation,
        "model": started.model,
        "backend": started.backend,
        "worker": started.worker,
        "prompt_tokens": started.prompt_tokens,
        "queue_ms": started.queue_ms,
        "seed": seed,
    }


def progress_frame(generation: str, progress: Progress) -> PrefillFrame | WaitingFrame:
    if progress.what and not progress.done:
        return {"type": "waiting", "generation": generation, "why": progress.what}
    return {"type": "prefill", "generation": generation, "done": progress.done, "total": progress.total}


def count_frame(found: Tokenized | None) -> CountFrame:
    return {
        "type": "count",
        "tokens": len(found.ids) if found else None,
        "context": found.context if found else None,
    }


def tokens_frame(generation: str, tokens: Tokens) -> TokensFrame:
    return {
        "type": "tokens",
        "generation": generation,
        "seq": tokens.seq,
        "n": len(tokens.ids),
        "text": tokens.text,
        "t_us": tokens.t_us,
    }


def done_frame(generation: str, done: Done) -> DoneFrame:
    return {
        "type": "done",
        "generation": generation,
        "finish_reason": done.finish_reason,
        "text": done.text,
        "timings": msgspec.to_builtins(done.timings),
    }


def failed_frame(generation: str, failed: Failed) -> ErrorFrame:
    return error_frame(failed.reply, failed.message, generation=generation)


def error_frame(
    reply: Reply,
    message: str = "",
    *,
    generation: str | None = None,
    retry_after_s: int | None = None,
) -> ErrorFrame:
    """The message may be left out where the reply has its sentence."""
    frame: ErrorFrame = {
        "type": "error",
        "code": reply.code,
        "message": message or reply.sentence,
        "retryable": reply.retryable,
    }
    if generation is not None:
        frame["generation"] = generation
    if retry_after_s is not None:
        frame["retry_after_s"] = retry_after_s
    return frame

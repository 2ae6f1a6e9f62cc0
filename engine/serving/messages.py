"""Everything that crosses Redis: key names, the request, and the frames of a generation.

Web processes and workers share only this module. Each type is encoded and decoded beside its
declaration, as JSON in the field `json` of a stream entry. Frame n of a generation has the stream id
`n-0`, counted from 1: appending it twice is impossible, whoever tries.

Processes of several versions may share a Redis. A field that the reader does not know is passed over in
what a worker says (frames, heartbeats), and refused in a request: it asks for what would not be done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from engine.errors import RequestError
from engine.models.prompt import ChatMessage, Prompt
from engine.sampling import SamplingParams
from engine.timings import FinishReason, Timings

GROUP = "workers"
INTERACTIVE = "ml:inbox:interactive"
BENCH = "ml:inbox:bench"
INBOXES = (INTERACTIVE, BENCH)
"""In the order in which a worker looks at them."""
WAITING = "ml:waiting"
"""Sorted set of the ids that no worker has taken, in the order in which they will be."""
ENTRIES = "ml:entries"
"""Hash: request id to "<inbox> <entry id>", until the request ends."""
SHARES = "ml:shares"
"""Hash: request id to a line "<width> <share>" for each client.FairShare that it was submitted under."""
WORKERS = "ml:workers"
"""Set of the worker names that may have a heartbeat."""
EXPIRES_S = 15 * 60
"""How long an output stream outlives the end of its generation."""
INBOX_LIMIT = 256
"""Requests that may wait in one inbox; a further one is refused, never trimmed."""

MAX_LOGPROBS = 20
"""Alternatives to a token that a request may ask for, as in the OpenAI API."""


def worker_inbox(name: str) -> str:
    """The inbox of the requests that only the worker `name` may take."""
    return f"ml:inbox:worker:{name}"


def out_key(request_id: str) -> str:
    return f"ml:out:{request_id}"


def cancel_key(request_id: str) -> str:
    return f"ml:cancel:{request_id}"


def owner_key(request_id: str) -> str:
    """Names the worker that may append to the request's output; a worker that lost it stays silent."""
    return f"ml:owner:{request_id}"


def worker_key(name: str) -> str:
    return f"ml:worker:{name}"


def service_key(inbox: str) -> str:
    """List of how long the last requests of an inbox took in a worker's hands, ms, newest first."""
    return inbox.replace("inbox", "service")


def frame_id(number: int) -> str:
    """The stream id of a generation's frame, counted from 1."""
    return f"{number}-0"


def frame_number(stream_id: str) -> int:
    return int(stream_id.partition("-")[0])


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A generation, as the web asks for it: text in, text out; the worker owns the tokenizer."""

    id: str
    prompt: Prompt
    model: str = ""
    """Empty means whatever the worker holds; otherwise a worker with another model refuses."""
    worker: str = ""
    """Empty means whichever is free; otherwise the one of that name, or none."""
    max_tokens: int = 256
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    """How many alternatives to each token the worker is to score with it; None for no scores at all."""
    ignore_eos: bool = False
    """Whether to go on to max_tokens whatever the model says, as measurements want."""
    cache_salt: str = ""
    """Whose prompt it is (backends.base.Job.cache_salt); empty computes all of it."""
    created_ms: int = 0
    """What older web processes say. Nothing goes by it: the clocks of two machines may differ."""
    kind: Literal["generate"] = "generate"

    @property
    def inbox(self) -> str:
        return worker_inbox(self.worker) if self.worker else INTERACTIVE

    def to_entry(self) -> dict[str, str]:
        return {"id": self.id, "json": json.dumps(asdict(self))}

    @classmethod
    def from_entry(cls, entry: Mapping[str, str]) -> Self:
        """Raises RequestError if the entry is not a request."""
        data = _load(entry)
        try:
            prompt = {"messages": (), **data["prompt"]}
            prompt["messages"] = tuple(ChatMessage(**m) for m in prompt["messages"])
            prompt["tokens"] = tuple(prompt.get("tokens", ()))
            return cls(
                **{
                    **data,
                    "prompt": Prompt(**prompt),
                    "sampling": SamplingParams(**data.get("sampling", {})),
                    "stop": tuple(data.get("stop", ())),
                }
            )
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise RequestError(f"the request cannot be read: {error}") from error


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One benchmark point: what `engine.measuring.bench` takes; the answer is a `measured` frame."""

    id: str
    model: str
    backend: str
    devices: int
    context: int
    tokens: int
    repeats: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    created_ms: int = 0
    sync: str = ""
    """One of engine.backends.base.SYNCS; empty for what the worker does by itself."""
    trace: bool = False
    """Whether the answer shall hold a trace of one token."""
    kind: Literal["bench"] = "bench"

    @property
    def inbox(self) -> str:
        return BENCH

    def to_entry(self) -> dict[str, str]:
        data = asdict(self)
        if not self.sync:
            del data["sync"]  # a worker from before there was a choice refuses a field that it does not know
        return {"id": self.id, "json": json.dumps(data)}

    @classmethod
    def from_entry(cls, entry: Mapping[str, str]) -> Self:
        """Raises RequestError if the entry is not a benchmark point."""
        data = _load(entry)
        try:
            return cls(**{**data, "sampling": SamplingParams(**data.get("sampling", {}))})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise RequestError(f"the benchmark point cannot be read: {error}") from error


Request = GenerateRequest | BenchRequest


def decode_request(entry: Mapping[str, str]) -> Request:
    """The request in an inbox entry, of whatever kind. Raises RequestError if it is none."""
    data = _load(entry)
    kinds: dict[str, type[Request]] = {"generate": GenerateRequest, "bench": BenchRequest}
    if (kind := kinds.get(str(data.get("kind", "generate")))) is None:
        raise RequestError(f"the request is of kind {data['kind']!r}; there are {' and '.join(kinds)}")
    request = kind.from_entry(entry)
    _check_types(request)
    return request


def _check_types(request: Request) -> None:
    """Raises RequestError if a field is not what the declaration says: a dataclass does not look."""
    whole = ("max_tokens", "created_ms") if isinstance(request, GenerateRequest) else _BENCH_NUMBERS
    for name in whole:
        value = getattr(request, name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise RequestError(f"{name} is {value!r}; it must be a whole number")
    if isinstance(request, GenerateRequest) and request.logprobs not in (None, *range(MAX_LOGPROBS + 1)):
        raise RequestError(f"logprobs is {request.logprobs!r}; allowed are none and 0 to {MAX_LOGPROBS}")
    name = "trace" if isinstance(request, BenchRequest) else "ignore_eos"
    if not isinstance(getattr(request, name), bool):
        raise RequestError(f"{name} is {getattr(request, name)!r}; it must be true or false")
    texts: list[Any] = [request.id, request.model]
    if isinstance(request, BenchRequest):
        texts.append(request.sync)
    else:
        prompt = request.prompt
        texts += [request.worker, *request.stop, prompt.text or "", prompt.suffix or ""]
        texts += [text for message in prompt.messages for text in (message.role, message.content)]
    if bad := [text for text in texts if not isinstance(text, str)]:
        raise RequestError(f"{bad[0]!r} stands where a text must be")


_BENCH_NUMBERS = ("devices", "context", "tokens", "repeats", "created_ms")


@dataclass(frozen=True, slots=True)
class Started:
    """A worker took the request. A second one in the same stream means another worker went on with it."""

    worker: str
    model: str
    backend: str
    prompt_tokens: int
    queue_ms: float
    type: Literal["started"] = "started"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Some new tokens. `seq` counts the tokens before this frame, so a reader can drop what it has.

    `text` may lag `ids` by a split code point or a possible stop string. `t_us` is the time of the
    last token since the first one of this launch, by the launch's clock.
    """

    seq: int
    ids: tuple[int, ...]
    text: str
    t_us: int
    type: Literal["tokens"] = "tokens"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and ln p(token | everything before it), by the model alone: no temperature, filter, penalty.

    `token` is how to show it (Tokenizer.label). `bytes` are what it adds to the text, possibly a part of a
    character; none for a special token.
    """

    token: str
    bytes: tuple[int, ...]
    logprob: float


@dataclass(frozen=True, slots=True)
class Scored:
    """How likely the model found the tokens from number `seq` on, all of them after the last Tokens frame.

    `alternatives[i]` are the most likely tokens at the place of `chosen[i]`, the likeliest first.
    """

    seq: int
    chosen: tuple[Candidate, ...]
    alternatives: tuple[tuple[Candidate, ...], ...]
    type: Literal["scored"] = "scored"


@dataclass(frozen=True, slots=True)
class Done:
    """The end. `text` is what was still held back; `finish_reason` as in the OpenAI API, or 'cancelled'."""

    finish_reason: FinishReason
    text: str
    timings: Timings
    type: Literal["done"] = "done"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a benchmark point or a long prefill is: `done` of `total` `unit`."""

    done: int
    total: int
    unit: str
    type: Literal["progress"] = "progress"


MAX_TRACE_BYTES = 4 * 2**20
"""A packed trace that is larger stays with the worker: Redis holds an answer for EXPIRES_S."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A benchmark point's result: a measurement document (engine.measuring.measurement).

    `trace` is a Chrome trace (engine.measuring.trace.packed) in base64; empty if none was asked for,
    the backend records none, or it has more than MAX_TRACE_BYTES.
    """

    measurement: dict[str, Any]
    trace: str = ""
    type: Literal["measured"] = "measured"


@dataclass(frozen=True, slots=True)
class Failed:
    """The request ended without a result. `code` is one of ERROR_CODES."""

    code: str
    message: str
    retryable: bool = False
    type: Literal["error"] = "error"


ERROR_CODES = (
    "bad_request",
    "too_long",
    "wrong_model",
    "backend_failed",
    "worker_lost",
    "expired",
    "internal",
)

Frame = Started | Tokens | Scored | Done | Progress | Measured | Failed
FINAL = (Done, Measured, Failed)
"""Frames after which nothing follows."""

_FRAMES: dict[str, type[Frame]] = {
    "started": Started,
    "tokens": Tokens,
    "scored": Scored,
    "done": Done,
    "progress": Progress,
    "measured": Measured,
    "error": Failed,
}


def encode_frame(frame: Frame) -> dict[str, str]:
    # asdict would copy every token id on its own; only the timings nest.
    data = {name: getattr(frame, name) for name in frame.__dataclass_fields__}
    return {"json": json.dumps(data, separators=(",", ":"), default=asdict)}


def decode_frame(entry: Mapping[str, str]) -> Frame:
    """The frame in a stream entry. Raises RequestError if it is none."""
    try:
        data = json.loads(entry["json"])
        kind = _FRAMES[data["type"]]
        if kind is Tokens:
            data["ids"] = tuple(data["ids"])
        if kind is Scored:
            data["chosen"] = _candidates(data["chosen"])
            data["alternatives"] = tuple(map(_candidates, data["alternatives"]))
        if kind is Done:
            data["timings"] = Timings(**_known(Timings, data["timings"]))
        return kind(**_known(kind, data))
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(f"not a frame: {error}") from error


def _known(kind: type[Frame | Timings | Heartbeat], said: Mapping[str, Any]) -> dict[str, Any]:
    """What `kind` has a field for: a newer worker may say more."""
    return {name: said[name] for name in kind.__dataclass_fields__ if name in said}


def _candidates(rows: list[dict[str, Any]]) -> tuple[Candidate, ...]:
    return tuple(Candidate(row["token"], tuple(row["bytes"]), row["logprob"]) for row in rows)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a worker says of itself every second; the hash expires when it stops saying it."""

    name: str
    model: str
    backend: str
    devices: tuple[str, ...]
    state: Literal["loading", "idle", "generating", "benchmarking", "stopping"]
    context: int = 0
    chat: bool = False
    infill: bool = False
    parallelism: str = "none"
    lanes: int = 1
    sync: str = ""
    """How the backend's threads or devices wait for each other, where it has a choice."""
    link: str = ""
    """What joins the devices ("NVLink"), where there are several."""
    last_tok_s: float = 0.0
    request: str = ""
    started_ms: int = 0

    EVERY_S = 1.0
    TTL_S = 5

    def to_hash(self) -> dict[str, str]:
        """Beside it the hash holds `environment`: what environment.capture says of the worker."""
        return {"json": json.dumps(asdict(self))}

    @classmethod
    def from_hash(cls, entry: Mapping[str, str]) -> Self:
        """Raises KeyError, TypeError or ValueError if it is no heartbeat."""
        data = json.loads(entry["json"])
        return cls(**{**_known(cls, data), "devices": tuple(data["devices"])})


def _load(entry: Mapping[str, str]) -> dict[str, Any]:
    try:
        data = json.loads(entry["json"])
    except (KeyError, ValueError) as error:
        raise RequestError(f"the inbox entry is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise RequestError("the inbox entry is not a JSON object")
    return data

"""Everything that crosses Redis: key names, the request, and the frames of a generation.

Web processes and workers share only this module. Each type is declared once, with its bounds, and travels as
JSON in the field `json` of a stream entry (`wire`). Frame n of a generation has the stream id `n-0`, counted
from 1: appending it twice is impossible, whoever tries.

Processes of several versions may share a Redis. A field that the reader does not know is passed over in
what a worker says (frames, heartbeats), and refused in a request: it asks for what would not be done.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from engine.errors import RequestError
from engine.models.prompt import Prompt
from engine.progress import Count, Progress
from engine.replies import Reply, reply_for
from engine.sampling import SamplingParams
from engine.serving.wire import encode, read, read_strictly
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
"""Hash: request id to a line "<width> <share>" for each submission.FairShare that it was submitted under."""
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


class _Request(Struct, frozen=True, tag_field="kind"):
    id: str

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    def to_entry(self) -> dict[str, str]:
        """Raises RequestError if a text is not Unicode."""
        return {"id": self.id, "json": encode(self)}


class GenerateRequest(_Request, frozen=True, tag="generate"):
    """A generation, as the web asks for it: text in, text out; the worker owns the tokenizer."""

    prompt: Prompt
    model: str = ""
    """Empty means whatever the worker holds; otherwise a worker with another model refuses."""
    worker: str = ""
    """Empty means whichever is free; otherwise the one of that name, or none."""
    max_tokens: int = 256
    sampling: SamplingParams = SamplingParams()
    stop: tuple[str, ...] = ()
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    """How many alternatives to each token the worker is to score with it; None for no scores at all."""
    ignore_eos: bool = False
    """Whether to go on to max_tokens whatever the model says, as measurements want."""
    cache_salt: str = ""
    """Whose prompt it is (backends.base.Job.cache_salt); empty computes all of it."""
    created_ms: int = 0
    """What older web processes say. Nothing goes by it: the clocks of two machines may differ."""

    @property
    def inbox(self) -> str:
        return worker_inbox(self.worker) if self.worker else INTERACTIVE


class BenchRequest(_Request, frozen=True, tag="bench"):
    """One benchmark point: what `engine.measuring.bench` takes; the answer is a `measured` frame."""

    model: str
    backend: str
    devices: int
    context: int
    tokens: int
    repeats: int
    sampling: SamplingParams = SamplingParams()
    created_ms: int = 0
    sync: str = ""
    """One of engine.backends.base.SYNCS; empty for what the worker does by itself."""
    trace: bool = False
    """Whether the answer shall hold a trace of one token."""
    streams: int = 1
    """Requests that are decoded side by side."""

    @property
    def inbox(self) -> str:
        return BENCH

    def to_entry(self) -> dict[str, str]:
        data = msgspec.to_builtins(self)
        for name, ordinary in (("sync", ""), ("streams", 1)):
            if data[name] == ordinary:
                del data[
                    name
                ]  # a worker from before there was a choice refuses a field that it does not know
        return {"id": self.id, "json": encode(data)}


Request = GenerateRequest | BenchRequest
_REQUESTS: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)


def decode_request(entry: Mapping[str, str]) -> Request:
    """The request in an inbox entry, of whatever kind. Raises RequestError if it is none."""
    try:
        return read_strictly(entry["json"], _REQUESTS)
    except KeyError as error:
        raise RequestError("the request cannot be read: its entry has no field 'json'") from error
    except ValueError as error:
        raise RequestError(f"the request cannot be read: {error}") from error


class _Frame(Struct, frozen=True, tag_field="type"):
    """What a worker says of a request."""


class Started(_Frame, frozen=True, tag="started"):
    """A worker took the request. A second one in the same stream means another worker went on with it."""

    worker: str
    model: str
    backend: str
    prompt_tokens: Count
    queue_ms: float


class Tokens(_Frame, frozen=True, tag="tokens"):
    """Some new tokens. `seq` counts the tokens before this frame, so a reader can drop what it has.

    `text` may lag `ids` by a split code point or a possible stop string. `t_us` is the time of the
    last token since the first one of this launch, by the launch's clock.
    """

    seq: Count
    ids: tuple[int, ...]
    text: str
    t_us: int


LEAST_LOGPROB = -9999.0
"""Stands for the logarithm of nought, which JSON cannot hold; as in the OpenAI API."""


class Candidate(Struct, frozen=True):
    """A token and ln p(token | everything before it), by the model alone: no temperature, filter, penalty.

    `token` is how to show it (Tokenizer.label). `bytes` are what it adds to the text, possibly a part of a
    character; none for a special token. `logprob` is at least LEAST_LOGPROB.
    """

    token: str
    bytes: tuple[int, ...]
    logprob: float


class Scored(_Frame, frozen=True, tag="scored"):
    """How likely the model found the tokens from number `seq` on, all of them after the last Tokens frame.

    `alternatives[i]` are the most likely tokens at the place of `chosen[i]`, the likeliest first.
    """

    seq: Count
    chosen: tuple[Candidate, ...]
    alternatives: tuple[tuple[Candidate, ...], ...]


class Done(_Frame, frozen=True, tag="done"):
    """The end. `text` is what was still held back; `finish_reason` as in the OpenAI API, or 'cancelled'."""

    finish_reason: FinishReason
    text: str
    timings: Timings


MAX_TRACE_BYTES = 4 * 2**20
"""A packed trace that is larger stays with the worker: Redis holds an answer for EXPIRES_S."""


class Measured(_Frame, frozen=True, tag="measured"):
    """A benchmark point's result: a measurement document (engine.measuring.measurement).

    `trace` is a Chrome trace (engine.measuring.trace.packed) in base64; empty if none was asked for,
    the backend records none, or it has more than MAX_TRACE_BYTES.
    """

    measurement: dict[str, Any]
    trace: str = ""


class Failed(_Frame, frozen=True, tag="error"):
    """The request ended without a result: `code` and `retryable` as in engine.replies."""

    code: str
    message: str
    retryable: bool = False

    @classmethod
    def of(cls, reply: Reply, message: str) -> Failed:
        return cls(reply.code, message, reply.retryable)

    @property
    def reply(self) -> Reply:
        return reply_for(self.code, retryable=self.retryable)


Frame = Started | Tokens | Scored | Done | Progress | Measured | Failed
FINAL = (Done, Measured, Failed)
"""Frames after which nothing follows."""

_FRAMES: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


def encode_frame(frame: Frame) -> dict[str, str]:
    return {"json": encode(frame)}


def decode_frame(entry: Mapping[str, str]) -> Frame:
    """The frame in a stream entry. Raises RequestError if it is none."""
    try:
        return read(entry["json"], _FRAMES)
    except (KeyError, ValueError) as error:
        raise RequestError(f"not a frame: {error}") from error


class ServedModel(Struct, frozen=True):
    """One of the models that a worker takes requests for."""

    name: str
    state: Literal["loaded", "loading", "unloaded", "failed"] = "loaded"
    """Unloaded ones are loaded when they are asked for; failed ones were tried, and are tried again."""
    context: int = 0
    chat: bool = False
    infill: bool = False
    detail: str = ""
    """How far its loading is, or why it failed."""


class Heartbeat(Struct, frozen=True):
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
    """Of the last generation that ended, by itself."""
    request: str = ""
    """The one that it has had for longest."""
    busy_ms: int = 0
    """How long it has had `request` in hand: no other clock than its own knows when it began."""
    rows: int = 1
    """How many requests it takes at once."""
    in_hand: int = 0
    """How many it has now. A worker of a version without rows leaves it at 0."""
    tok_s: float = 0.0
    """Of all that is in hand together, over the last second."""
    models: tuple[ServedModel, ...] = ()
    """All that it serves; `model` is the one that it ran last. A worker with one may leave it empty."""

    EVERY_S = 1.0
    TTL_S = 5

    @property
    def free(self) -> int:
        """How many requests it could begin now."""
        if self.state == "idle":
            return self.rows
        return max(0, self.rows - max(1, self.in_hand)) if self.state == "generating" else 0

    @property
    def served(self) -> tuple[ServedModel, ...]:
        return self.models or (ServedModel(self.model, "loaded", self.context, self.chat, self.infill),)

    def find(self, model: str) -> ServedModel | None:
        """What it says of a model; of the one that it ran last where the name is empty."""
        wanted = model or self.model
        return next((one for one in self.served if one.name == wanted), None if model else self.served[0])

    def to_hash(self) -> dict[str, str]:
        """Beside it the hash holds `environment`: what environment.capture says of the worker."""
        return {"json": encode(self)}

    @classmethod
    def from_hash(cls, entry: Mapping[str, str]) -> Heartbeat:
        """Raises KeyError or ValueError if it is no heartbeat."""
        return read(entry["json"], _HEARTBEATS)


_HEARTBEATS = msgspec.json.Decoder(Heartbeat)

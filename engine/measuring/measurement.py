"""Schema 2: what one benchmark point leaves behind, as a value and as JSON. Schema 1 is read as well.

The dashboard stores these, `benchmarks/` keeps them, and nothing is called a measurement without
`verified`: a speed whose tokens were not checked is not a result.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from engine.backends.base import MAILBOX
from engine.errors import MeasurementError, RequestError
from engine.kv_cache import CacheFormat
from engine.sampling import SamplingParams
from engine.timings import PhaseTime

SCHEMA = 2
"""What is written. docs/measuring.md says what schema 2 added; every addition has a default for schema 1."""
READABLE = (1, 2)


@dataclass(frozen=True, slots=True)
class BytesPerToken:
    weights: int
    kv: int

    @property
    def total(self) -> int:
        return self.weights + self.kv

    def of_step(self, streams: int) -> int:
        """What a step reads that gives each of so many streams a token: the weights once."""
        return self.weights + streams * self.kv


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    name: str
    params: int
    bytes_per_token: BytesPerToken
    weight_format: str = ""
    """How the checkpoint holds the weights: "f16", "bf16", "f32" or a packed format; empty: not told."""
    active_params: int | None = None
    """Of a mixture of experts, those that one token uses; None: all."""


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """Bandwidths in GB/s (10^9 bytes); 0 means unknown."""

    name: str
    datasheet_gbs: float
    measured_gbs: float


@dataclass(frozen=True, slots=True)
class Settings:
    """What was run. A file without `sampling` was measured greedily, one without `sync` by mailboxes."""

    context: int
    tokens: int
    repeats: int
    devices: int = 1
    """How many shared the model; a file that does not say it has one entry a device in its list."""
    parallelism: str = "none"
    """"none", "tp" (a slice of every matrix on each device) or "dtp" (whole lanes on each, with a delay)."""
    delay: int = 0
    """Layers by which a lane sees the others' output late."""
    lanes: int = 1
    sync: str = MAILBOX
    """One of SYNCS."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    cached_tokens: int = 0
    """Tokens of the prompt that an earlier request had left in the cache: 0 is cold, more is warm."""
    streams: int = 1
    """Requests that were decoded side by side; decode speeds are of one of them, the mean of all."""
    cache: str = CacheFormat.FP16.value
    """A CacheFormat: how keys and values are kept. A file that does not say it kept them in FP16."""


@dataclass(frozen=True, slots=True)
class DecodeSpeed:
    """Tokens a second, one sample a repeat. `ci95` bounds the median (bootstrap)."""

    median: float
    ci95: tuple[float, float]
    samples: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class InterTokenLatency:
    """Microseconds between tokens over all repeats. A percentile is None where n is too small to bound it."""

    p50: float
    p90: float | None
    p99: float | None
    n: int


@dataclass(frozen=True, slots=True)
class PrefillSpeed:
    tok_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class FirstToken:
    p50: float
    n: int


@dataclass(frozen=True, slots=True)
class Mbu:
    """Memory-bandwidth utilisation, 0 to 1; None where that bandwidth is unknown."""

    datasheet: float | None
    measured: float | None


FULL, PARTIAL, OWN = "full", "partial", "own"
"""How much of what was timed an independent computation has seen: all that was compared; the first positions
only (every matrix, but tokens by the backend's own pass over the sequence); or nothing (schema 1 alone)."""
KINDS = (FULL, PARTIAL, OWN)
LOGIT_LIMIT = 1e-2
"""Relative error of logits that is allowed. Healthy runs of real models reach 2.6e-3 (FP16 weights, keys and
values), small random ones of odd shapes 9e-3; the least planted damage that changes no token, 2.7e-2."""
_PLAIN = (float, int, str, bool, type(None))
Part = TypeVar("Part")
_OWN_PASS = "own full-sequence pass"  # noqa: S105 - what schema 1 called it


@dataclass(frozen=True, slots=True)
class Verified:
    """What the measured tokens and logits were compared with, and how close they came.

    `tokens` of the generated ones were compared; None where the file does not say how many.
    """

    against: str
    tokens_equal: bool
    logit_rel_err: float | None
    kind: str = FULL
    """One of KINDS."""
    limit: float | None = LOGIT_LIMIT
    """The largest `logit_rel_err` that passes; None where no logits were compared."""
    tokens: int | None = None

    @property
    def passed(self) -> bool:
        """Whether the tokens are equal and the logits within the limit."""
        error = self.logit_rel_err
        return self.tokens_equal and (error is None or self.limit is None or error <= self.limit)


@dataclass(frozen=True, slots=True)
class Samples:
    """What the figures were summed up from, one entry a repeat; empty in files that kept none.

    Of several streams `ttft_ms` and `prefill_tok_s` have an entry for each stream of each repeat.
    """

    ttft_ms: tuple[float, ...] = ()
    prefill_tok_s: tuple[float, ...] = ()
    itl_us: tuple[tuple[float, ...], ...] = ()
    stream_tok_s: tuple[tuple[float, ...], ...] = ()
    """Decode speed of each stream, where there are several."""


@dataclass(frozen=True, slots=True)
class Measurement:
    created: str
    git_sha: str
    model: MeasuredModel
    backend: str
    devices: tuple[MeasuredDevice, ...]
    settings: Settings
    decode: DecodeSpeed
    itl_us: InterTokenLatency
    prefill: PrefillSpeed
    ttft_ms: FirstToken
    mbu: Mbu
    phases_us: Mapping[str, PhaseTime]
    verified: Verified
    environment: Mapping[str, Any] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: schema 2, `decode` holding both `tok_s` and `itl_us`."""
        data = asdict(self)
        data["decode"] = {"tok_s": data["decode"], "itl_us": data.pop("itl_us")}
        return {"schema": SCHEMA, **data}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Reads the JSON form. Raises MeasurementError naming the field that is missing or wrong."""
        if not isinstance(data, Mapping):
            raise MeasurementError(f"a measurement is a JSON object, not {type(data).__name__}")
        schema = data.get("schema")
        if schema not in READABLE or isinstance(schema, bool):
            read = " and ".join(map(str, READABLE))
            raise MeasurementError(f"schema is {schema!r}; this version reads schema {read}")
        try:
            model, decode, settings = data["model"], data["decode"], data["settings"]
            speed = decode["tok_s"]
            found = cls(
                created=str(data["created"]),
                git_sha=str(data["git_sha"]),
                model=_read_part(
                    MeasuredModel,
                    {
                        **model,
                        "params": int(model["params"]),
                        "bytes_per_token": _read_part(BytesPerToken, model["bytes_per_token"]),
                    },
                ),
                backend=str(data["backend"]),
                devices=tuple(_read_part(MeasuredDevice, d) for d in data["devices"]),
                settings=Settings(
                    **{
                        "devices": len(data["devices"]),
                        **settings,
                        "sampling": SamplingParams(**settings.get("sampling", {})),
                    }
                ),
                decode=DecodeSpeed(
                    float(speed["median"]),
                    (float(speed["ci95"][0]), float(speed["ci95"][1])),
                    tuple(float(s) for s in speed["samples"]),
                ),
                itl_us=_read_part(InterTokenLatency, decode["itl_us"]),
                prefill=_read_part(PrefillSpeed, data["prefill"]),
                ttft_ms=_read_part(FirstToken, data["ttft_ms"]),
                mbu=_read_part(Mbu, data["mbu"]),
                phases_us={k: _read_part(PhaseTime, v) for k, v in data["phases_us"].items()},
                verified=_read_verified(data["verified"], schema),
                environment=dict(data["environment"]),
                samples=_samples(data.get("samples", {})),
            )
        except KeyError as error:
            raise MeasurementError(f"the field {error} is missing") from error
        except (TypeError, ValueError, IndexError, AttributeError, OverflowError, RequestError) as error:
            raise MeasurementError(f"a field has the wrong form: {error}") from error
        found.check()
        _check_types(found.settings)
        return found

    def check(self) -> None:
        """Raises MeasurementError if a figure cannot be true."""
        self._check_settings()
        if self.verified.kind not in KINDS:
            kinds = ", ".join(KINDS)
            raise MeasurementError(f"verified.kind is {self.verified.kind!r}; it is one of {kinds}")
        for speeds in self.samples.stream_tok_s:
            if len(speeds) != self.settings.streams or not all(0 < s < math.inf for s in speeds):
                raise MeasurementError(
                    f"samples.stream_tok_s has {list(speeds)}; a repeat has a positive speed for each of"
                    f" {self.settings.streams} streams"
                )
        if not self.decode.samples:
            raise MeasurementError("decode.tok_s.samples is empty; keep the raw samples")
        for speed in (self.decode.median, *self.decode.samples):
            if not (math.isfinite(speed) and speed > 0):
                raise MeasurementError(f"a decode speed is {speed}; it must be positive")
        for which in ("datasheet", "measured"):
            mbu = getattr(self.mbu, which)
            if mbu is not None and not 0 < mbu <= 1.2:
                raise MeasurementError(f"mbu.{which} is {mbu}; faster than the memory allows")

    def _check_settings(self) -> None:
        asked = self.settings
        context, cached, streams = asked.context, asked.cached_tokens, asked.streams
        if not isinstance(context, int) or context < 1:
            raise MeasurementError(f"settings.context is {context!r}; a prompt has 1 token or more")
        if not isinstance(cached, int) or not 0 <= cached < context:
            raise MeasurementError(
                f"settings.cached_tokens is {cached!r}; of {context} prompt tokens 0 to {context - 1} can be"
            )
        if asked.cache not in tuple(CacheFormat):
            known = " or ".join(CacheFormat)
            raise MeasurementError(f"settings.cache is {asked.cache!r}; keys and values are kept in {known}")
        if not isinstance(streams, int) or streams < 1:
            raise MeasurementError(f"settings.streams is {streams!r}; it must be 1 or more")


def _read_part(kind: type[Part], data: Mapping[str, Any]) -> Part:
    """A part of a measurement from its JSON form. Raises TypeError, OverflowError or MeasurementError."""
    found = kind(**data)
    _check_types(found)
    return found


def _check_types(part: object) -> None:
    """Raises MeasurementError if a plain field is not what it is declared: a dataclass does not look."""
    for name, hint in get_type_hints(type(part)).items():
        declared = tuple(one for one in (get_args(hint) or (hint,)) if one in _PLAIN)
        value = getattr(part, name)
        if declared and get_origin(hint) is not tuple and not _is_one_of(value, declared):
            raise MeasurementError(f"a field has the wrong form: {name} is {value!r}")


def _is_one_of(value: Any, declared: tuple[type, ...]) -> bool:
    """Whether a JSON value is of a declared type: a whole number is a float too, true is no number."""
    if isinstance(value, bool):
        return bool in declared
    if float in declared and isinstance(value, int | float):
        return math.isfinite(value)
    return isinstance(value, declared)


def _read_verified(data: Mapping[str, Any], schema: int) -> Verified:
    """Schema 1 gave no kind and no limit: what it says of either follows from its other fields."""
    if schema == 1:
        kind = OWN if data["against"].startswith(_OWN_PASS) else FULL
        data = {**data, "kind": kind, "limit": None if data["logit_rel_err"] is None else LOGIT_LIMIT}
    return _read_part(Verified, data)


def _samples(data: Mapping[str, Any]) -> Samples:
    return Samples(
        ttft_ms=tuple(float(t) for t in data.get("ttft_ms", ())),
        prefill_tok_s=tuple(float(t) for t in data.get("prefill_tok_s", ())),
        itl_us=tuple(tuple(float(gap) for gap in repeat) for repeat in data.get("itl_us", ())),
        stream_tok_s=tuple(tuple(float(t) for t in repeat) for repeat in data.get("stream_tok_s", ())),
    )


def read_measurements(path: Path) -> list[Measurement]:
    """The measurements in a file (one object, or a list). Raises MeasurementError, naming the file."""
    documents = read_documents(path)
    try:
        return [Measurement.from_dict(document) for document in documents]
    except MeasurementError as error:
        raise MeasurementError(f"{path}: {error}") from error


def read_documents(path: Path) -> list[Any]:
    """What a file holds (one JSON value, or a list of them) as it stands, unchecked.

    Raises MeasurementError, naming the file, if it holds no JSON.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise MeasurementError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # not text, not JSON, or too deep
        raise MeasurementError(f"{path} is not JSON: {error}") from error
    return data if isinstance(data, list) else [data]

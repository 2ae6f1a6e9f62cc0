"""Strangers' input by the schema, with what is wrong in it: refused in words, never an unhandled error.

A short form is among all tests; the full one, 100,000 cases, is nightly. A failure names its case's seed.
"""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from dashboard.api.views import api
from dashboard.measurements.foreign import Told
from dashboard.measurements.importing import import_documents
from engine.errors import EngineError, MeasurementError, RequestError
from engine.measuring.measurement import Measurement
from engine.models.catalogue import open_model
from engine.models.config import ModelConfig, tensor_shapes
from engine.models.weights import RandomWeights
from engine.sampling import OPTIONS
from engine.serving.messages import decode_frame, decode_request
from playground.api.errors import ApiError
from playground.api.parameters import parse_chat, parse_completion
from playground.api.tokenize import parse_tokenize
from playground.protocol import Start, parse_client_frame
from playground.validation import Invalid
from tests.dashboard import factories
from tests.engine.models.checkpoints.files import write_gguf
from tests.engine.serving.workers import write_chatterbox
from tests.fuzz.damage import Make, anything, as_text, damaged, damaged_bytes, of_schema

AT_ONCE = 20
"""Cases of one example: what hypothesis itself costs is shared by them."""


def fuzz(case: Callable[[random.Random], object], cases: int) -> None:
    @settings(
        max_examples=cases // AT_ONCE, database=None, deadline=None, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck), derandomize=True,
    )  # fmt: skip
    @given(st.integers(0, 2**63))
    def run(seed: int) -> None:
        for number in range(seed, seed + AT_ONCE):
            case(random.Random(number))

    run()


def forms(full: int) -> pytest.MarkDecorator:
    """The test with a few cases, and nightly with `full` of them."""
    nightly = pytest.param(full, id="full", marks=[pytest.mark.nightly, pytest.mark.timeout(3600)])
    return pytest.mark.parametrize("cases", [pytest.param(200, id="short"), nightly])


def _choice(*values: Any) -> Make:
    return lambda rng: rng.choice(values)


def _number(low: float, high: float, *, whole: bool = False) -> Make:
    return lambda rng: rng.randint(int(low), int(high)) if whole else rng.uniform(low, high)


SAMPLING: dict[str, Make] = {
    option.name: _number(max(option.low, -100), min(option.high, 2**31), whole=option.whole)
    for option in OPTIONS
}
TEXT = _choice("def f(", "é\N{ROCKET}", "x" * 300)
ROLE = _choice("user", "system", "assistant", "developer")
MESSAGES: Make = lambda rng: [  # noqa: E731
    of_schema(
        rng,
        {"role": ROLE, "content": TEXT},
        ("role", "content"),
    )
    for _ in range(rng.randrange(1, 4))
]
COMPLETION: dict[str, Make] = {
    **SAMPLING, "model": _choice("tiny"), "prompt": TEXT, "max_tokens": _number(1, 400, whole=True),
    "suffix": TEXT,
    "stop": _choice("x", ["a", "b"]), "n": _number(1, 4, whole=True),
    "stream": _choice(True, False), "seed": _number(0, 9, whole=True),
    "logprobs": _choice(0, 5, True), "echo": _choice(False), "best_of": _choice(1), "user": TEXT,
    "logit_bias": _choice({"1": 2}),
    "stream_options": _choice({"include_usage": True}), "ignore_eos": _choice(True),
}  # fmt: skip
CHAT: dict[str, Make] = {
    **{name: make for name, make in COMPLETION.items() if name not in ("prompt", "suffix", "echo")},
    "messages": MESSAGES, "top_logprobs": _choice(3), "max_completion_tokens": _number(1, 99, whole=True),
    "response_format": _choice({"type": "text"}), "tools": _choice([]), "tool_choice": _choice("none"),
}  # fmt: skip
FRAMES: dict[str, dict[str, Make]] = {
    "start": {
        "prompt": TEXT, "suffix": TEXT, "messages": MESSAGES, "model": _choice("tiny"),
        "worker": _choice("w"),
        "max_tokens": _number(1, 99, whole=True), "stop": _choice("x", ["a"]),
        "sampling": lambda rng: of_schema(rng, SAMPLING),
    },
    "stop": {},
    "ack": {"seq": _number(0, 9999, whole=True)},
    "resume": {"generation": _choice("0" * 32), "after": _number(0, 99, whole=True)},
    "count": {"prompt": TEXT, "model": _choice("tiny"), "messages": MESSAGES},
}  # fmt: skip


@forms(30_000)
def test_bodies_of_the_api(cases: int) -> None:
    def case(rng: random.Random) -> None:
        parse, schema, must = rng.choice(
            (
                (parse_completion, COMPLETION, ("model", "prompt")),
                (parse_chat, CHAT, ("model", "messages")),
                (
                    parse_tokenize,
                    {"model": _choice("tiny"), "prompt": TEXT, "messages": MESSAGES},
                    ("model",),
                ),
            )
        )
        data = json.loads(json.dumps(of_schema(rng, schema, must)))
        with suppress(ApiError):
            asked = parse(data)
            for one in getattr(asked, "choices", ()):
                decode_request(one.to_entry())

    fuzz(case, cases)


@forms(25_000)
def test_frames_of_the_socket(cases: int) -> None:
    def case(rng: random.Random) -> None:
        kind = rng.choice(list(FRAMES))
        data = {"type": kind, **of_schema(rng, FRAMES[kind])}
        with suppress(Invalid):
            asked = parse_client_frame(as_text(rng, data if rng.random() < 0.9 else anything(rng)))
            if isinstance(asked, Start):
                decode_request(asked.request.to_entry())

    fuzz(case, cases)


@forms(10_000)
def test_what_lies_in_redis(cases: int) -> None:
    """Requests and frames that another process wrote, of another version or by mistake."""
    asked = json.loads(parse_client_frame('{"type": "start", "prompt": "x"}').request.to_entry()["json"])  # type: ignore[union-attr]
    done = {"type": "done", "finish_reason": "stop", "text": "", "timings": {"queue_ms": 1.0}}
    token = {"type": "tokens", "seq": 0, "ids": [1, 2], "text": "ab", "t_us": 5}

    def case(rng: random.Random) -> None:
        decode, whole = rng.choice(((decode_request, asked), (decode_frame, done), (decode_frame, token)))
        with suppress(RequestError):
            decode({"json": as_text(rng, damaged(rng, whole))})

    fuzz(case, cases)


@pytest.mark.slow
@pytest.mark.django_db
@forms(10_000)
def test_queries_of_the_dashboards_api(cases: int) -> None:
    """By the OpenAPI description that the API gives of itself."""
    factories.stored()
    paths = [
        (path, [one["name"] for one in methods["get"].get("parameters", ()) if one["in"] == "query"])
        for path, methods in api.get_openapi_schema()["paths"].items()
        if "get" in methods
    ]
    client = Client()

    def case(rng: random.Random) -> None:
        path, names = rng.choice(paths)
        filled = re.sub(r"{[^}]*}", lambda _: str(rng.choice((1, 0, 99, "x", "2" * 30, "-1"))), path)
        query = {
            name: str(rng.choice((anything(rng, 0), 1, "1,2", "decode", "2026-01-01T00:00:00Z")))
            for name in names
            if rng.random() < 0.4
        }
        query = {name: value.encode("utf-8", "replace").decode() for name, value in query.items()}
        assert client.get(filled, query).status_code < 500, (filled, query)

    fuzz(case, cases)


@pytest.mark.django_db
@forms(15_000)
def test_measurement_files(cases: int) -> None:
    whole = factories.document()

    def case(rng: random.Random) -> None:
        broken = json.loads(json.dumps(damaged(rng, whole)))
        with suppress(MeasurementError):
            Measurement.from_dict(broken)
        if rng.random() < 0.02:
            with suppress(MeasurementError):
                import_documents(documents=[broken], source="fuzz", told=Told())

    fuzz(case, cases)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A GGUF file and a folder, both whole."""
    folder = tmp_path_factory.mktemp("whole")
    config = ModelConfig("tiny", 32, 1, 2, 1, 16, 64, 300, 64)
    gguf = write_gguf(folder / "whole.gguf", RandomWeights(config, 7))
    return gguf, write_chatterbox(folder / "chatterbox")


@forms(10_000)
def test_checkpoints(cases: int, checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    gguf, folder = checkpoints
    data = gguf.read_bytes()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    broken = tmp_path / "broken"
    broken.mkdir()
    for name, content in files.items():
        (broken / name).write_bytes(content)

    def case(rng: random.Random) -> None:
        if rng.random() < 0.4:
            path = tmp_path / "broken.gguf"
            path.write_bytes(damaged_bytes(rng, data, 9000))
            _open(path)
            return
        name = rng.choice(list(files))
        content = files[name]
        if name.endswith(".json") and rng.random() < 0.6:
            (broken / name).write_text(as_text(rng, damaged(rng, json.loads(content))))
        else:
            (broken / name).write_bytes(damaged_bytes(rng, content, 2000))
        _open(broken)
        (broken / name).write_bytes(content)

    fuzz(case, cases)


def _open(path: Path) -> None:
    with suppress(EngineError):
        model = open_model(str(path))
        for name, _ in itertools.islice(tensor_shapes(model.config), 3):
            model.weights.get(name)
        if model.tokenizer is not None:
            model.tokenizer.encode("hello")

"""Schema 1 survives a round trip, and says which field of a foreign file is wrong."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import MeasurementError
from engine.measuring.measurement import (
    FULL,
    KINDS,
    LOGIT_LIMIT,
    OWN,
    BytesPerToken,
    DecodeSpeed,
    FirstToken,
    InterTokenLatency,
    Mbu,
    MeasuredDevice,
    MeasuredModel,
    Measurement,
    PrefillSpeed,
    Samples,
    Settings,
    Verified,
    read_measurements,
)
from engine.sampling import SamplingParams
from engine.timings import PhaseTime

positive = st.floats(1e-3, 1e9)
share = st.none() | st.floats(1e-6, 1.2)
words = st.text(max_size=20)
measurements = st.builds(
    Measurement,
    created=words,
    git_sha=words,
    model=st.builds(
        MeasuredModel,
        words,
        st.integers(1),
        st.builds(BytesPerToken, st.integers(0), st.integers(0)),
        words,
        st.none() | st.integers(1),
    ),
    backend=words,
    devices=st.lists(st.builds(MeasuredDevice, words, positive, positive), max_size=3).map(tuple),
    settings=st.builds(
        Settings,
        st.integers(1),
        st.integers(2),
        st.integers(1),
        devices=st.integers(1, 8),
        parallelism=words,
        delay=st.integers(0, 4),
        sync=st.sampled_from(["mailbox", "barrier"]),
        sampling=st.builds(SamplingParams, temperature=st.floats(0, 10), seed=st.integers(0, 2**64 - 1)),
        cached_tokens=st.just(0),
        streams=st.integers(1, 64),
    ),
    decode=st.builds(
        DecodeSpeed,
        positive,
        st.tuples(positive, positive),
        st.lists(positive, min_size=1, max_size=9).map(tuple),
    ),
    itl_us=st.builds(
        InterTokenLatency, positive, st.none() | positive, st.none() | positive, st.integers(0, 10**6)
    ),
    prefill=st.builds(PrefillSpeed, positive, st.integers(1)),
    ttft_ms=st.builds(FirstToken, positive, st.integers(1)),
    mbu=st.builds(Mbu, share, share),
    phases_us=st.dictionaries(words, st.builds(PhaseTime, positive, positive, positive), max_size=3),
    verified=st.builds(
        Verified,
        words,
        st.booleans(),
        st.none() | positive,
        st.sampled_from(KINDS),
        st.none() | positive,
        st.none() | st.integers(1),
    ),
    environment=st.dictionaries(words, words, max_size=3),
    samples=st.builds(
        Samples,
        st.lists(positive, max_size=3).map(tuple),
        st.lists(positive, max_size=3).map(tuple),
        st.lists(st.lists(positive, max_size=3).map(tuple), max_size=3).map(tuple),
    ),
)


@pytest.fixture
def document() -> dict[str, Any]:
    return Measurement(
        created="2026-11-21T10:00:00+00:00",
        git_sha="abc",
        model=MeasuredModel("m", 10, BytesPerToken(20, 4)),
        backend="numpy",
        devices=(MeasuredDevice("d", 0.0, 50.0),),
        settings=Settings(16, 8, 5),
        decode=DecodeSpeed(100.0, (99.0, 101.0), (99.0, 100.0, 101.0)),
        itl_us=InterTokenLatency(10.0, None, None, 35),
        prefill=PrefillSpeed(200.0, 16),
        ttft_ms=FirstToken(5.0, 5),
        mbu=Mbu(None, 0.5),
        phases_us={"qkv": PhaseTime(1.0)},
        verified=Verified("reference", True, 1e-6),
    ).to_dict()


@given(measurements)
def test_a_measurement_survives_its_json_form(measurement: Measurement) -> None:
    assert Measurement.from_dict(json.loads(json.dumps(measurement.to_dict()))) == measurement


def test_the_json_form_has_the_names_of_schema_2(document: dict[str, Any]) -> None:
    assert document["schema"] == 2
    assert set(document["decode"]) == {"tok_s", "itl_us"}
    assert set(document["decode"]["itl_us"]) == {"p50", "p90", "p99", "n"}
    assert document["model"]["bytes_per_token"] == {"weights": 20, "kv": 4}


def test_a_file_from_before_a_setting_was_written_down_still_says_what_ran(document: dict[str, Any]) -> None:
    document["devices"] *= 4
    for later in ("sync", "devices", "sampling"):
        del document["settings"][later]
    settings = Measurement.from_dict(document).settings
    assert settings.devices == 4
    assert settings.sync == "mailbox"
    assert settings.sampling == SamplingParams()


@pytest.mark.parametrize("path", sorted(Path("benchmarks").glob("*.json")), ids=lambda path: path.stem)
def test_every_committed_file_is_read_and_passed_its_verification(path: Path) -> None:
    for found in read_measurements(path):
        assert found.verified.passed
        error = found.verified.logit_rel_err
        assert error is None or error < LOGIT_LIMIT / 3, "a healthy run comes too near to the limit"


@pytest.mark.parametrize(
    ("against", "error", "kind", "limit"),
    [
        ("own full-sequence pass", None, OWN, None),
        ("own full-sequence pass; the repeats' tokens differ", None, OWN, None),
        ("reference (NumPy, FP32)", 2e-3, FULL, LOGIT_LIMIT),
    ],
)
def test_schema_1_says_how_far_it_was_verified_by_its_other_fields(
    document: dict[str, Any], against: str, error: float | None, kind: str, limit: float | None
) -> None:
    document["schema"] = 1
    document["verified"] = {"against": against, "tokens_equal": True, "logit_rel_err": error}
    found = Measurement.from_dict(document).verified
    assert (found.kind, found.limit, found.tokens) == (kind, limit, None)


@pytest.mark.parametrize(
    ("equal", "error", "limit", "passed"),
    [
        (True, None, None, True),
        (True, 2e-3, 1e-2, True),
        (True, 2e-2, 1e-2, False),
        (False, 2e-3, 1e-2, False),
        (True, 0.5, None, True),
    ],
)
def test_equal_tokens_with_logits_beyond_the_limit_are_not_verified(
    equal: bool, error: float | None, limit: float | None, passed: bool
) -> None:
    assert Verified("x", equal, error, FULL, limit).passed is passed


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("settings", "cached_tokens"), 16, "cached_tokens is 16; of 16 prompt tokens 0 to 15"),
        (("settings", "streams"), 0, "streams is 0"),
        (("settings", "cache"), "int4", "kept in fp16 or fp8"),
        (("samples", "stream_tok_s"), [[1.0, 2.0]], "a positive speed for each of 1 streams"),
        (("verified", "kind"), "partly", "kind is 'partly'; it is one of full, partial, own"),
    ],
)
def test_what_schema_2_added_is_checked(
    document: dict[str, Any], path: tuple[str, str], value: Any, words: str
) -> None:
    document[path[0]][path[1]] = value
    with pytest.raises(MeasurementError, match=words):
        Measurement.from_dict(document)


@pytest.mark.parametrize("field", ["model", "decode", "verified", "devices", "mbu", "ttft_ms"])
def test_a_missing_field_is_named(document: dict[str, Any], field: str) -> None:
    del document[field]
    with pytest.raises(MeasurementError, match=field):
        Measurement.from_dict(document)


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("model",), 3),
        (("decode", "tok_s", "samples"), None),
        (("decode", "tok_s", "ci95"), [1.0]),
        (("devices",), [{"name": "d"}]),
        (("verified",), {"against": "x", "sure": True}),
        (("settings", "sampling"), {"temperature": -1}),
        (("samples",), {"itl_us": [3.0]}),
        (("phases_us",), {"qkv": 3}),
    ],
)
def test_a_field_of_the_wrong_form_is_refused(
    document: dict[str, Any], path: tuple[str, ...], wrong: Any
) -> None:
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = wrong
    with pytest.raises(MeasurementError):
        Measurement.from_dict(document)


@pytest.mark.parametrize(
    ("speed", "samples"),
    [(0.0, [1.0]), (-3.0, [1.0]), (float("nan"), [1.0]), (1.0, []), (1.0, [1.0, float("inf")])],
)
def test_a_speed_that_cannot_be_true_is_refused(
    document: dict[str, Any], speed: float, samples: list[float]
) -> None:
    document["decode"]["tok_s"].update(median=speed, samples=samples)
    with pytest.raises(MeasurementError, match="decode"):
        Measurement.from_dict(document)


@pytest.mark.parametrize("context", [0, -1, "many"])
def test_a_run_without_a_prompt_is_refused(document: dict[str, Any], context: object) -> None:
    document["settings"]["context"] = context
    with pytest.raises(
        MeasurementError, match=f"settings.context is {context!r}; a prompt has 1 token or more"
    ):
        Measurement.from_dict(document)


@pytest.mark.parametrize("which", ["datasheet", "measured"])
def test_a_speed_beyond_the_memory_is_refused(document: dict[str, Any], which: str) -> None:
    document["mbu"][which] = 1.3
    with pytest.raises(MeasurementError, match=which):
        Measurement.from_dict(document)


@pytest.mark.parametrize("schema", [None, 0, 3, "1", True])
def test_another_schema_is_refused(document: dict[str, Any], schema: Any) -> None:
    document["schema"] = schema
    with pytest.raises(MeasurementError, match="schema"):
        Measurement.from_dict(document)


def test_files_from_before_raw_latencies_and_sampling_are_still_read(document: dict[str, Any]) -> None:
    del document["samples"]
    del document["settings"]["sampling"]
    found = Measurement.from_dict(document)
    assert found.samples == Samples()
    assert found.settings.sampling == SamplingParams()


def test_a_file_holds_one_measurement_or_a_list(document: dict[str, Any], tmp_path: Path) -> None:
    one, many = tmp_path / "one.json", tmp_path / "many.json"
    one.write_text(json.dumps(document))
    many.write_text(json.dumps([document, document]))
    assert read_measurements(many) == read_measurements(one) * 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema": 1}', b"[3]", b"\xff\xfe"])
def test_a_broken_file_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.json"
    path.write_bytes(content)
    with pytest.raises(MeasurementError, match=r"broken\.json"):
        read_measurements(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="none"):
        read_measurements(tmp_path / "none.json")


def test_reading_does_not_change_the_document(document: dict[str, Any]) -> None:
    before = copy.deepcopy(document)
    Measurement.from_dict(document)
    assert document == before

"""Incremental detokenising: whole characters only, and stop strings never shown."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RequestError
from engine.models.text_stream import TextStream

SMALL = st.text(alphabet="ab\né🙂", max_size=12)
STOPS = st.lists(st.text(alphabet="ab\né🙂", min_size=1, max_size=4), max_size=3)


class Pieces:
    """A vocabulary whose token i is the i-th piece."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token: int) -> bytes:
        return self._pieces[token]


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """`data` in pieces, cut anywhere, even inside a character."""
    edges = [0, *sorted(p % (len(data) + 1) for p in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


def stream(pieces: Sequence[bytes], stop: Sequence[str]) -> tuple[list[str], TextStream]:
    text = TextStream(Pieces(pieces), stop)
    return [*(text.push(i) for i in range(len(pieces))), text.finish()], text


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """What the rule says, read off character by character: the stop that is complete first wins."""
    for end in range(1, len(text) + 1):
        met = [s for s in stop if text[:end].endswith(s)]
        if met:
            return text[: end - max(map(len, met))]
    return text


@given(text=st.text(), places=st.lists(st.integers(0, 1 << 16), max_size=20))
def test_pieces_join_to_the_text_however_it_is_cut(text: str, places: list[int]) -> None:
    shown, _ = stream(cut(text.encode(), places), ())

    assert "".join(shown) == text


@given(data=st.binary(), places=st.lists(st.integers(0, 1 << 16), max_size=20))
def test_broken_bytes_decode_as_the_whole_would(data: bytes, places: list[int]) -> None:
    shown, _ = stream(cut(data, places), ())

    assert "".join(shown) == data.decode("utf-8", "replace")


@given(text=SMALL, stop=STOPS, places=st.lists(st.integers(0, 64), max_size=12))
def test_text_is_cut_before_the_stop_that_is_complete_first(
    text: str, stop: list[str], places: list[int]
) -> None:
    shown, state = stream(cut(text.encode(), places), stop)

    assert "".join(shown) == cut_at_stop(text, stop)
    assert state.stopped == any(s in text for s in stop)


@given(text=SMALL, stop=STOPS, places=st.lists(st.integers(0, 64), max_size=12))
def test_what_is_shown_never_has_to_be_taken_back(text: str, stop: list[str], places: list[int]) -> None:
    shown, _ = stream(cut(text.encode(), places), stop)
    final = cut_at_stop(text, stop)

    for n in range(len(shown)):
        assert final.startswith("".join(shown[:n]))


@given(text=SMALL, stop=STOPS)
def test_nothing_is_held_back_without_a_reason(text: str, stop: list[str]) -> None:
    pieces = [c.encode() for c in text]
    state = TextStream(Pieces(pieces), stop)
    shown = "".join(state.push(i) for i in range(len(pieces)))

    held = cut_at_stop(text, stop)[len(shown) :]

    assert not held or any(s.startswith(held) for s in stop)


def test_a_character_in_several_tokens_is_shown_with_its_last_one() -> None:
    shown, _ = stream([b"a\xf0", b"\x9f", b"\x99", b"\x82b"], ())

    assert shown == ["a", "", "", "🙂b", ""]


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    shown, _ = stream([b"ok\xf0\x9f"], ())

    assert shown == ["ok", "\ufffd"]


def test_a_possible_stop_is_shown_once_it_cannot_be_one() -> None:
    shown, state = stream([b"x<", b"|", b"y"], ["<|end|>"])

    assert shown == ["x", "", "<|y", ""]
    assert not state.stopped


def test_a_stop_string_in_several_tokens_is_never_shown() -> None:
    shown, state = stream([b"one\n", b"\n", b"two"], ["\n\n"])

    assert shown == ["one", "", "", ""]
    assert state.stopped


def test_special_tokens_add_nothing() -> None:
    shown, _ = stream([b"a", b"", b"b"], ())

    assert "".join(shown) == "ab"


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="a stop string is empty"):
        TextStream(Pieces([]), ["x", ""])

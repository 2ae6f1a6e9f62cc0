"""How much work one address may ask for, and what is said to one that asks for more."""

from __future__ import annotations

from types import SimpleNamespace

import daphne.server  # noqa: F401  # must be the first to import Twisted's reactor
import pytest
from daphne.http_protocol import WebRequest
from twisted.internet.testing import StringTransport

from config import bounds, server
from config.bounds import Exclusions, Pace
from config.channel import Channel
from config.server import EXCLUDED_S, FILE, FORM, HANDSHAKE, TURN_S, WORK_A_S, WORK_AT_ONCE, Request, work_of
from tests.config.test_turns import PEER, Loop

UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.fixture
def now(monkeypatch) -> list[float]:
    """The time, in a list of one."""
    found = [100.0]
    monkeypatch.setattr(bounds, "monotonic", lambda: found[0])
    return found


@pytest.fixture
def factory(now, monkeypatch) -> SimpleNamespace:
    """What connections share. `begun` has the path of every request that the application gets."""
    found = SimpleNamespace(
        body_bytes=1 << 20,
        begun=[],
        excluded=Exclusions(EXCLUDED_S, 10 * EXCLUDED_S),
        pace=Pace(WORK_A_S, WORK_AT_ONCE),
        left=lambda _: None,
        log=lambda _: None,
        loop=Loop(),
        server=SimpleNamespace(
            protocol_connected=lambda _: None,
            protocol_disconnected=lambda _: None,
            server_name="",
            log_action=lambda *_: None,
        ),
    )
    monkeypatch.setattr(server, "reactor", found.loop)
    monkeypatch.setattr(WebRequest, "process", lambda request: found.begun.append(request.path.decode()))
    return found


def ask(factory: SimpleNamespace, target: str, headers: str = "") -> tuple[Channel, StringTransport]:
    """A request on a connection of its own, from PEER."""
    channel = Channel()
    channel.factory, channel.requestFactory = factory, Request
    channel.callLater = lambda *_: SimpleNamespace(active=lambda: False)
    transport = StringTransport()
    channel.makeConnection(transport)
    channel.dataReceived(f"{target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n{headers}\r\n".encode())
    return channel, transport


def test_work_beyond_the_burst_comes_at_its_pace(now):
    pace = Pace(rate=2, burst=4)
    waits = [pace.wait_s("a", 1, 10) for _ in range(7)]
    assert waits == [0, 0, 0, 0, 0.5, 1.0, 1.5]
    assert pace.wait_s("b", 1, 10) == 0
    now[0] += 60
    assert pace.wait_s("a", 4, 10) == 0


def test_what_would_wait_too_long_makes_nobody_wait_longer(now):
    pace = Pace(rate=1, burst=1)
    assert [pace.wait_s("a", 1, 1.0) for _ in range(4)] == [0, 1, 2, 2]


def test_an_address_that_cannot_be_told_does_not_wait(now):
    pace = Pace(rate=1, burst=1)
    assert [pace.wait_s("", 1, 1.0) for _ in range(3)] == [0, 0, 0]


def test_those_that_owe_nothing_are_forgotten(now, monkeypatch):
    monkeypatch.setattr(bounds, "REMEMBERED", 3)
    pace = Pace(rate=1, burst=1)
    for address in "abcdefgh":
        pace.wait_s(address, 1, 1.0)
        now[0] += 0.4
    assert len(pace._paid_until) <= 4


def test_each_exclusion_is_twice_as_long_up_to_the_longest(now):
    excluded = Exclusions(first_s=10, longest_s=30)
    found = []
    for _ in range(4):
        excluded.add("a")
        found.append(excluded.left_s("a"))
        now[0] += found[-1]
        assert not excluded.left_s("a")
    assert found == [10, 20, 30, 30]
    now[0] += 31
    excluded.add("a")
    assert excluded.left_s("a") == 10


def test_what_happens_while_an_address_is_out_makes_it_no_longer(now):
    excluded = Exclusions(first_s=10, longest_s=30)
    for _ in range(5):
        excluded.add("a")
    assert excluded.left_s("a") == 10


@pytest.mark.parametrize(
    ("asked", "work"),
    [
        ("GET /dashboard/", 1),
        ("POST /dashboard/sign-in/", FORM),
        ("GET /healthz", 0),
        ("GET /static/dist/page.js", FILE),
        ("POST /static/dist/page.js", FORM),
        ("POST /v1/completions", 0),
        ("GET /tokenize", 1),
        ("POST /tokenize", 1),
    ],
)
def test_work_is_counted_in_pages(asked, work):
    method, path = asked.encode().split()
    assert work_of(method, path) == work


def test_guesses_beyond_the_burst_wait_for_their_turn(factory):
    for _ in range(25):
        ask(factory, "POST /dashboard/sign-in/")
    assert len(factory.begun) == WORK_AT_ONCE / FORM == 20
    factory.loop.turn(5 * FORM / WORK_A_S)
    assert len(factory.begun) == 25


def test_who_would_wait_too_long_is_refused_after_waiting(factory):
    answers = [ask(factory, "POST /dashboard/sign-in/")[1] for _ in range(60)]
    assert not any(answer.value() for answer in answers)  # nobody learns at once, to ask again
    factory.loop.turn(TURN_S)
    refused = [answer for answer in answers if answer.value().startswith(b"HTTP/1.1 429 ")]
    assert len(refused) == 60 - len(factory.begun) == 20
    assert b"Retry-After: 1\r\n" in refused[0].value()


@pytest.mark.parametrize("headers", ["Upgrade: websocketx\r\n", "Upgrade: h2c\r\nUpgrade: websocket\r\n"])
def test_what_only_looks_like_a_websocket_waits_as_the_form_that_it_is(factory, headers):
    for _ in range(25):
        ask(factory, "POST /dashboard/sign-in/", headers)
    assert len(factory.begun) == 20


def test_opening_websockets_without_end_is_work_too(factory):
    for _ in range(500):
        ask(factory, "GET /ws/playground/", UPGRADE)
    assert len(factory.begun) == pytest.approx(WORK_AT_ONCE / HANDSHAKE, abs=1)  # sums of fractions


def test_probes_pass_whoever_waits(factory):
    for _ in range(30):
        ask(factory, "POST /dashboard/sign-in/")
    ask(factory, "GET /healthz")
    assert factory.begun[-1] == "/healthz"


def test_whose_work_is_not_counted_is_not_asked_for_its_address(factory, monkeypatch):
    monkeypatch.setattr(Request, "_address", lambda _: pytest.fail("nobody counts by it"))
    ask(factory, "POST /v1/completions")
    assert factory.begun == ["/v1/completions"]


def test_a_client_that_left_before_its_turn_costs_nothing(factory):
    asked = [ask(factory, "POST /dashboard/sign-in/")[0] for _ in range(21)]
    asked[-1].connectionLost(None)
    factory.loop.turn(TURN_S)
    assert len(factory.begun) == 20


def test_a_flooder_opens_no_other_websocket_and_reads_when_it_may(factory, now):
    factory.excluded.add(PEER)
    _, answer = ask(factory, "GET /ws/playground/", UPGRADE)
    assert answer.value().startswith(b"HTTP/1.1 429 ")
    assert b"Retry-After: 10\r\n" in answer.value()
    ask(factory, "GET /")
    assert factory.begun == ["/"]  # others may sit behind the same address, and read
    now[0] += EXCLUDED_S
    ask(factory, "GET /ws/playground/", UPGRADE)
    assert factory.begun == ["/", "/ws/playground/"]


def test_asking_for_tokens_without_end_waits_as_for_pages(factory):
    for _ in range(300):
        ask(factory, "GET /tokenize")
    assert len(factory.begun) == WORK_AT_ONCE

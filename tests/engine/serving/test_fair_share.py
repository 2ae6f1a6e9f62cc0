"""Fair shares: one submitter's requests enter the inbox a few at a time, whatever happens to those before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from engine.serving.client import Client
from engine.serving.errors import QueueFull, TooManyWaiting
from engine.serving.inbox import Inbox
from engine.serving.messages import INTERACTIVE, Done, Started
from engine.serving.publisher import Publisher
from engine.serving.submission import FairShare
from engine.timings import Timings
from tests.engine.serving.test_client import bench, generate

MINE = FairShare("mine", waiting=2)
END = Done("stop", "", Timings(0, 0, 0, 0, 0, 1, 1))


class Hands:
    """A worker's hands: takes and ends requests without an engine."""

    def __init__(self, url: str) -> None:
        self.inbox = Inbox(url, "w", "w token")
        self.publisher = Publisher(url, "w token")
        self.redis = redis.Redis.from_url(url, decode_responses=True)

    def take(self) -> str | None:
        taken = self.inbox.take()
        return None if taken is None else taken.id

    def end(self, request: str) -> None:
        output = self.publisher.open(request)
        output.frame(Started("w", "m", "numpy", 1, 0.0))
        output.end(END)
        assert output.finish()

    def entered(self) -> list[str]:
        return [fields["id"] for _, fields in self.redis.xrange(INTERACTIVE)]

    def close(self) -> None:
        self.publisher.close()
        self.inbox.close()
        self.redis.close()


@pytest.fixture
def hands(redis_url: str) -> Iterator[Hands]:
    found = Hands(redis_url)
    found.take()  # makes the groups
    yield found
    found.close()


def test_the_second_request_of_a_share_enters_when_the_first_has_ended(client, hands):
    client.submit(generate("a1"), share=MINE)
    client.submit(generate("a2"), share=MINE)
    assert hands.entered() == ["a1"]
    assert hands.take() == "a1"
    hands.end("a1")
    assert hands.entered() == ["a2"]
    assert hands.take() == "a2"


def test_others_who_came_later_go_before_a_second_request_of_the_same_share(client, hands):
    client.submit(generate("a1"), share=MINE)
    client.submit(generate("a2"), share=MINE)
    client.submit(generate("b1"), share=FairShare("another"))
    served = []
    for _ in range(3):
        served.append(hands.take())
        hands.end(served[-1])
    assert served == ["a1", "b1", "a2"]


def test_the_place_told_counts_everybody_who_goes_before(client, hands):
    assert client.submit(bench("point")) == 1
    assert client.submit(generate("a1"), share=MINE) == 1
    assert client.submit(generate("a2"), share=MINE) == 2
    assert client.submit(generate("b1"), share=FairShare("another")) == 2
    assert [client.position(name) for name in ("a1", "b1", "a2", "point")] == [1, 2, 3, 4]


def test_a_wider_share_has_that_many_in_the_inbox(client, hands):
    for number in range(4):
        client.submit(generate(f"k{number}"), share=FairShare("key", width=2))
    assert hands.entered() == ["k0", "k1"]
    assert hands.take() == "k0"
    hands.end("k0")
    assert hands.entered() == ["k1", "k2"]


def test_a_share_without_room_refuses_and_says_how_many_there_are(client, hands):
    for number in range(3):
        client.submit(generate(f"a{number}"), share=MINE)
    with pytest.raises(TooManyWaiting, match=r"^3 of your generations"):
        client.submit(generate("a3"), share=MINE)
    client.submit(generate("b"), share=FairShare("another"))


def test_submitting_a_held_request_again_changes_nothing(client, hands):
    client.submit(generate("a1"), share=MINE)
    client.submit(generate("a2"), share=MINE)
    assert client.submit(generate("a2"), share=MINE) == 2
    assert client.position("a2") == 2


def test_cancelling_a_held_request_ends_it_and_leaves_the_rest_in_order(client, hands):
    for number in range(3):
        client.submit(generate(f"a{number}"), share=MINE)
    assert client.cancel("a1") is True
    assert next(client.frames("a1")).final
    hands.take()
    hands.end("a0")
    assert hands.entered() == ["a2"]


def test_cancelling_the_one_whose_turn_it_is_lets_the_next_one_in(client, hands):
    client.submit(generate("a1"), share=MINE)
    client.submit(generate("a2"), share=MINE)
    client.cancel("a1")
    assert hands.entered() == ["a2"]


def test_many_shares_that_wait_do_not_close_the_inbox_to_others(client, hands):
    for cookie in range(3):
        for number in range(3):
            client.submit(
                generate(f"{cookie}{number}"), limit=6, share=FairShare(f"cookie {cookie}", waiting=8)
            )
    assert client.submit(generate("b"), limit=6, share=FairShare("another")) == 4
    assert hands.entered() == ["00", "10", "20", "b"]


def test_no_more_requests_are_held_than_an_inbox_takes(client, hands):
    for name in ("a", "b"):
        for number in range(2):
            client.submit(generate(f"{name}{number}"), limit=3, share=FairShare(name))
    client.submit(generate("a2"), limit=3, share=FairShare("a"))
    with pytest.raises(QueueFull, match="holds 3 requests"):
        client.submit(generate("b2"), limit=3, share=FairShare("b"))


def test_a_full_inbox_takes_nobodys_first_request(client, hands):
    for name in ("a", "b"):
        client.submit(generate(name), limit=2, share=FairShare(name))
    with pytest.raises(QueueFull, match="holds 2 requests"):
        client.submit(generate("c"), limit=2, share=FairShare("c"))
    assert hands.redis.exists("ml:share:c") == 0


def test_a_share_whose_request_vanished_is_not_stuck(client, hands):
    client.submit(generate("a1"), share=MINE)
    client.submit(generate("a2"), share=MINE)
    hands.redis.delete(INTERACTIVE)  # as when Redis came back without its last second
    hands.take()
    hands.inbox.tidy()
    assert hands.entered() == ["a2"]


def test_nothing_is_left_in_redis_once_all_have_ended(client, hands):
    for number in range(3):
        client.submit(generate(f"a{number}"), share=MINE)
    for number in range(3):
        assert hands.take() == f"a{number}"
        hands.end(f"a{number}")
    left = {key for key in hands.redis.keys("*") if hands.redis.ttl(key) == -1}
    assert left <= {INTERACTIVE, "ml:inbox:bench", "ml:inbox:worker:w", "ml:service:interactive"}


def test_a_client_without_a_share_is_not_held(client: Client, hands: Hands):
    client.submit(generate("x"))
    client.submit(generate("y"))
    assert hands.entered() == ["x", "y"]


def session(name: str, address: str = "a", width: int = 2) -> FairShare:
    """A session's share inside its address's."""
    return FairShare(f"session:{name}", 1, 2, FairShare(f"address:{address}", width, 3))


def test_sessions_of_one_address_have_the_addresss_part_of_the_inbox(client, hands):
    for number in range(4):
        client.submit(generate(f"a{number}"), share=session(f"s{number}"))
    client.submit(generate("b"), share=session("other", address="b"))
    assert hands.entered() == ["a0", "a1", "b"]
    assert hands.take() == "a0"
    hands.end("a0")
    assert hands.entered() == ["a1", "b", "a2"]


def test_a_session_that_is_busy_does_not_hold_up_others_of_its_address(client, hands):
    for name in ("first", "second"):
        client.submit(generate(name), share=session("s"))
    client.submit(generate("third"), share=session("t"))
    assert hands.entered() == ["first", "third"]  # the second waits for the first of its own session


def test_an_address_is_crowded_however_many_sessions_it_makes(client, hands):
    for number in range(5):
        client.submit(generate(f"a{number}"), share=session(f"s{number}"))
    with pytest.raises(TooManyWaiting, match=r"^5 of your generations"):
        client.submit(generate("a5"), share=session("fresh"))


def test_a_cancelled_request_leaves_both_shares(client, hands):
    for number in range(5):
        client.submit(generate(f"a{number}"), share=session(f"s{number}"))
    client.cancel("a0")
    client.cancel("a3")
    assert hands.entered() == ["a1", "a2"]
    client.submit(generate("a5"), share=session("s5"))
    for name in ("a1", "a2", "a4", "a5"):
        assert hands.take() == name
        hands.end(name)
    assert hands.redis.keys("ml:share*") == hands.redis.keys("ml:held:*") == []


def test_places_are_kept_for_whoever_has_nothing_in_the_queue(client, hands):
    greedy = FairShare("greedy", width=8)
    for number in range(3):
        client.submit(generate(f"a{number}"), limit=4, share=greedy, kept=1)
    with pytest.raises(QueueFull):
        client.submit(generate("a3"), limit=4, share=greedy, kept=1)
    client.submit(generate("b"), limit=4, share=FairShare("another"), kept=1)


def test_a_request_that_only_its_worker_remembers_can_be_cancelled(client, hands):
    """As after a Redis that lost its memory: the worker publishes on, nobody puts the entry back."""
    client.submit(generate("a"))
    assert hands.take() == "a"
    hands.redis.flushall()
    output = hands.publisher.open("a")
    output.frame(Started("w", "m", "numpy", 1, 0.0))
    while not hands.redis.exists("ml:out:a"):
        pass
    client.cancel("a")
    assert output.cancelled.wait(5)

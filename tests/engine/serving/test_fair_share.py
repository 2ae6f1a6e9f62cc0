"""Fair shares: one submitter's requests enter the inbox a few at a time, whatever happens to those before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from engine.serving.client import Client, FairShare
from engine.serving.errors import QueueFull, TooManyWaiting
from engine.serving.inbox import Inbox
from engine.serving.messages import INTERACTIVE, Done, Started
from engine.serving.publisher import Publisher
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
        assert output.finish(END, 5.0)

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

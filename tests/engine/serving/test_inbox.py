from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from msgspec.structs import replace
from redis.connection import AbstractConnection

from engine.models.prompt import Prompt
from engine.serving.client import Client
from engine.serving.inbox import DEAD_MS, MAX_BENCH_ATTEMPTS, Inbox
from engine.serving.messages import (
    BENCH,
    ENTRIES,
    GROUP,
    INTERACTIVE,
    WAITING,
    WORKERS,
    BenchRequest,
    GenerateRequest,
    Progress,
    encode_frame,
    out_key,
    worker_inbox,
)
from tests.waiting import PATIENCE_S, quickest, wait_until


def generate(request_id: str) -> GenerateRequest:
    return GenerateRequest(request_id, Prompt("hello"))


def bench(request_id: str) -> BenchRequest:
    return BenchRequest(request_id, "tiny-llama", "numpy", 1, 16, 8, 2)


@pytest.fixture
def raw(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


@pytest.fixture
def inbox(redis_url):
    def make(worker: str = "a", process: str = "1", dead_ms: int = 3500) -> Inbox:
        made.append(Inbox(redis_url, worker, f"{worker} {process}", dead_ms=dead_ms))
        return made[-1]

    made: list[Inbox] = []
    yield make
    for one in made:
        one.close()


def test_interactive_requests_come_before_benchmarks_whenever_they_arrived(inbox, client: Client):
    client.submit(bench("b1"))
    client.submit(bench("b2"))
    client.submit(generate("g1"))
    worker, taken = inbox(), []
    while (found := worker.take()) is not None:
        taken.append(found.id)
        worker.drop(found.id)
    assert taken == ["g1", "b1", "b2"]


def test_what_was_submitted_before_there_was_any_worker_counts(inbox, client):
    client.submit(generate("g"))
    assert inbox().take().id == "g"


def test_waiting_for_a_request_ends_as_soon_as_one_comes(inbox, client):
    worker = inbox()
    assert worker.take() is None
    begin = time.monotonic()
    assert worker.take(0.1) is None
    assert time.monotonic() - begin > 0.05

    def wait(turn: int) -> float:
        client.submit(generate(f"g{turn}"))
        begin = time.monotonic()
        assert worker.take(60.0).id == f"g{turn}"
        return time.monotonic() - begin

    assert quickest(wait, 0.5) < 0.5


def test_a_request_comes_with_the_reply_to_the_wait(inbox, client, monkeypatch):
    worker, sent = inbox(), Sent(monkeypatch)
    assert worker.take() is None
    monkeypatch.setattr("engine.serving.inbox.LOOK_S", 60.0)
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(worker.take, 60.0)
        wait_until(lambda: "XREAD" in sent[-1])
        last = len(sent)
        client.submit(generate("g"))
        assert taken.result(PATIENCE_S).id == "g"
    assert len(sent) == last


class Sent(list[str]):
    """What goes to Redis over connections of threads, a text each time that something is sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        send = AbstractConnection.send_packed_command

        def note(connection: AbstractConnection, command: Any, check_health: bool = True) -> None:
            parts = [command] if isinstance(command, bytes) else command
            self.append(b"".join(parts).decode())
            send(connection, parts, check_health)

        monkeypatch.setattr(AbstractConnection, "send_packed_command", note)


def test_a_wait_survives_that_redis_forgets_its_scripts_and_keys(inbox, client, raw):
    worker = inbox()
    assert worker.take() is None
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(worker.take, 60.0)
        raw.flushall()
        raw.script_flush()
        client.submit(generate("g"))
        assert taken.result(PATIENCE_S).id == "g"


def test_a_wait_goes_on_beyond_what_one_read_may_block(inbox, monkeypatch):
    monkeypatch.setattr("engine.serving.inbox.LOOK_S", 0.1)
    worker = inbox()
    begin = time.monotonic()
    assert worker.take(0.5) is None
    assert time.monotonic() - begin >= 0.5


def test_a_lost_reply_is_cured_by_asking_again(inbox, client):
    client.submit(generate("g"))
    worker = inbox()
    assert worker.take() == worker.take()
    assert worker.take().attempts == 1


def test_a_request_in_hand_is_nobody_elses(inbox, client):
    client.submit(generate("g"))
    inbox("a").take()
    assert inbox("b").take() is None
    assert client.position("g") is None


def test_a_silent_workers_request_goes_to_the_next(inbox, client):
    client.submit(generate("g"))
    first = inbox("a")
    first.take()
    time.sleep(0.12)
    found = inbox("b", dead_ms=100).take()
    assert (found.id, found.attempts) == ("g", 2)
    assert first.keep("g") is False
    assert first.release("g", INTERACTIVE) is False
    assert first.take() is None


def test_a_stall_of_redis_is_nobodys_death(redis_url, inbox, client, raw):
    """Ten seconds without a word are less than a worker gets, for everybody may have been silenced."""
    client.submit(generate("g"))
    inbox("a").take()
    [(entry, _)] = raw.xrange(INTERACTIVE)
    raw.xclaim(INTERACTIVE, GROUP, "a", 0, [entry], idle=10_000)
    assert inbox("b", dead_ms=DEAD_MS).take() is None
    raw.xclaim(INTERACTIVE, GROUP, "a", 0, [entry], idle=DEAD_MS + 1000)
    assert inbox("b", dead_ms=DEAD_MS).take().id == "g"


def test_an_abandoned_request_is_found_behind_any_number_of_busy_workers(inbox, client, raw):
    for number in range(15):
        client.submit(generate(f"g{number}"))
        inbox(f"w{number}").take()
    entries = [entry for entry, _ in raw.xrange(INTERACTIVE)]
    raw.xclaim(INTERACTIVE, GROUP, "w13", 0, [entries[13]], idle=60_000)
    assert inbox("free").take().id == "g13"


def test_a_worker_that_says_it_lives_keeps_its_request(inbox, client):
    client.submit(generate("g"))
    first, second = inbox("a"), inbox("b", dead_ms=300)
    first.take()
    for _ in range(5):
        time.sleep(0.1)
        assert first.keep("g") is True
        assert second.take() is None


def test_a_restarted_worker_takes_over_from_its_former_self(inbox, client):
    client.submit(generate("g"))
    former = inbox("a", "1")
    former.take()
    found = inbox("a", "2").take()
    assert (found.id, found.attempts) == ("g", 2)
    assert former.keep("g") is False


def test_a_request_handed_back_goes_first_and_does_not_count_against_it(inbox, client):
    first, second = inbox("a"), inbox("b")
    client.submit(generate("g1"))
    first.take()
    client.submit(generate("g2"))
    assert first.release("g1", INTERACTIVE) is True
    assert (client.position("g1"), client.position("g2")) == (1, 2)
    found = second.take()
    assert (found.id, found.attempts, found.last_error) == ("g1", 1, "")


def test_a_request_that_broke_a_device_counts_and_says_why(inbox, client):
    for worker, attempts in (("a", 1), ("b", 2), ("c", 3)):
        if attempts == 1:
            client.submit(generate("g"))
        one = inbox(worker)
        found = one.take()
        assert found.attempts == attempts
        assert found.poisonous is (attempts == 3)
        one.release("g", INTERACTIVE, "the watchdog fired")
    assert found.last_error == "the watchdog fired"


def test_to_wait_for_room_is_no_progress(inbox, client, raw):
    """Else a request that ends every worker would be tried anew each time."""
    client.submit(generate("g"))
    for done, attempts in ((0, 2), (3, 1)):
        inbox(f"a{done}").take()
        raw.xadd(out_key("g"), encode_frame(Progress(done, 10, "prompt tokens")))
        time.sleep(0.12)
        assert inbox(f"b{done}", dead_ms=100).take().attempts == attempts
        inbox(f"b{done}", dead_ms=100).release("g", INTERACTIVE)


def test_a_benchmark_s_point_outlives_more_lost_workers_than_a_generation(inbox, client):
    client.submit(bench("b"))
    poisonous = []
    for attempt in range(MAX_BENCH_ATTEMPTS + 1):
        one = inbox(f"w{attempt}")
        poisonous.append(one.take().poisonous)
        one.release("b", BENCH, "the process was killed")
    assert poisonous == [False] * MAX_BENCH_ATTEMPTS + [True]


def test_an_entry_without_an_id_is_dropped(inbox, client, raw):
    raw.xadd(INTERACTIVE, {"nonsense": "1"})
    worker = inbox()
    assert worker.take() is None
    assert raw.xlen(INTERACTIVE) == 0
    assert raw.xpending(INTERACTIVE, "workers")["pending"] == 0


def test_a_request_submitted_by_other_means_is_served_too(inbox, raw):
    raw.xadd(BENCH, bench("b").to_entry())
    assert inbox().take().entry == bench("b").to_entry()


def test_an_entry_that_was_deleted_while_in_hand_is_forgotten(inbox, client, raw):
    client.submit(generate("g"))
    worker = inbox()
    worker.take()
    raw.xtrim(INTERACTIVE, maxlen=0, approximate=False)
    assert worker.take() is None
    assert raw.xpending(INTERACTIVE, "workers")["pending"] == 0


def test_taking_goes_on_after_redis_lost_everything(inbox, client, raw):
    worker = inbox()
    assert worker.take() is None
    raw.flushall()
    client.submit(generate("g"))
    assert worker.take().id == "g"


def test_a_request_that_names_a_worker_is_for_that_one_only(inbox, client):
    client.submit(replace(generate("g"), worker="b"))
    assert inbox("a").take() is None
    assert inbox("b").take().id == "g"


def test_a_worker_named_with_spaces_gets_its_requests_and_can_finish_them(inbox, client, raw):
    client.submit(replace(generate("g"), worker="a b"))
    worker = inbox("a b")
    assert worker.take().id == "g"
    worker.drop("g")
    assert raw.hlen(ENTRIES) == raw.xlen(worker_inbox("a b")) == 0


def test_named_and_unnamed_requests_are_taken_in_the_order_in_which_they_came(inbox, client):
    names = ["", "a", "a", "", "a", ""]
    for number, name in enumerate(names):
        client.submit(replace(generate(f"g{number}"), worker=name))
        time.sleep(0.002)  # an entry's age is told in milliseconds
    worker, taken = inbox("a"), []
    while (found := worker.take()) is not None:
        taken.append(found.id)
        worker.drop(found.id)
    assert taken == [f"g{number}" for number in range(len(names))]


def test_a_named_request_that_was_handed_back_waits_for_its_worker_to_return(inbox, client):
    client.submit(replace(generate("g"), worker="a"))
    first = inbox("a", "1")
    first.take()
    assert first.release("g", worker_inbox("a")) is True
    assert inbox("b").take() is None
    assert (inbox("a", "2").take().id, client.position("g")) == ("g", None)


def test_tidying_drops_what_waited_too_long_for_a_worker_that_is_gone(inbox, client, raw):
    raw.sadd(WORKERS, "gone")
    raw.xadd(worker_inbox("gone"), {"id": "old", "json": "{}"}, id="1-0")
    raw.hset(ENTRIES, "old", f"{worker_inbox('gone')} 1-0")
    client.submit(replace(generate("young"), worker="gone"))
    worker = inbox("a")
    worker.tidy()
    assert raw.hkeys(ENTRIES) == ["young"]
    assert raw.smembers(WORKERS) == {"gone"}
    client.cancel("young")
    worker.tidy()
    assert raw.exists(worker_inbox("gone")) == raw.scard(WORKERS) == 0


def test_tidying_drops_what_is_dead_and_nothing_else(inbox, client, raw):
    worker = inbox()
    client.submit(generate("in hand"))
    worker.take()
    client.submit(generate("waiting"))
    client.submit(bench("waiting too"))
    client.submit(generate("gone"))
    raw.xdel(INTERACTIVE, raw.hget(ENTRIES, "gone").split()[1])
    raw.zadd(WAITING, {"never was": 1.0})
    raw.sadd(WORKERS, "dead")
    assert worker.tidy() == 4
    assert set(raw.zrange(WAITING, 0, -1)) == {"waiting", "waiting too"}
    assert set(raw.hkeys(ENTRIES)) == {"in hand", "waiting", "waiting too"}
    assert raw.smembers(WORKERS) == set()
    assert worker.tidy() == 0
    assert worker.keep("in hand") is True


def test_there_is_nothing_to_tidy_where_nothing_ever_was(inbox):
    assert inbox().tidy() == 0


def test_a_finished_request_leaves_nothing_in_the_queue(inbox, client, raw):
    client.submit(generate("g"))
    worker = inbox()
    worker.take()
    client.cancel("g")
    worker.drop("g")
    assert raw.xlen(INTERACTIVE) == 0
    assert set(raw.keys("*")) == {worker_inbox("a"), INTERACTIVE, BENCH, "ml:owner:g"}
    assert raw.ttl("ml:owner:g") > 0

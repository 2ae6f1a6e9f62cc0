from __future__ import annotations

import pytest
import redis

from engine.serving.liveness import CONFIRM_S, FIELD, Connection, PeerWatch, has_ended
from engine.serving.messages import WORKERS, worker_key
from tests.waiting import wait_until


@pytest.fixture
def raw(redis_url):
    with redis.Redis.from_url(redis_url, decode_responses=True) as found:
        yield found


@pytest.fixture
def held(redis_url, raw):
    """The connection of a worker called w."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as connection:
        name = Connection.of(connection)
        raw.sadd(WORKERS, "w")
        raw.hset(worker_key("w"), FIELD, str(name))
        yield connection, name


def close(connection: redis.Redis, name: Connection, raw: redis.Redis) -> None:
    """Until Redis has seen it: it hears of it when it next looks at its sockets."""
    connection.close()
    wait_until(lambda: has_ended(raw, name))


def test_a_worker_that_holds_its_connection_lives(raw, held):
    watch = PeerWatch(raw, "me")
    assert [watch.find_ended(0.0), watch.find_ended(100.0)] == [{}, {}]
    assert not has_ended(raw, held[1])


def test_a_connection_that_stays_closed_is_a_death(raw, held):
    connection, name = held
    close(connection, name, raw)
    watch = PeerWatch(raw, "me")
    assert watch.find_ended(0.0) == {}
    assert watch.find_ended(CONFIRM_S) == {"w": name}


def test_a_connection_that_is_renewed_between_two_looks_is_none(raw, held):
    connection, name = held
    close(connection, name, raw)
    watch = PeerWatch(raw, "me")
    watch.find_ended(0.0)
    raw.hset(worker_key("w"), FIELD, str(Connection.of(connection)))
    assert watch.find_ended(1.0) == {}


def test_numbers_of_a_redis_before_its_restart_say_nothing(raw):
    raw.sadd(WORKERS, "w")
    raw.hset(worker_key("w"), FIELD, "another-run 123456789")
    watch = PeerWatch(raw, "me")
    assert [watch.find_ended(0.0), watch.find_ended(1.0)] == [{}, {}]


def test_a_worker_is_no_peer_of_its_own(raw, held):
    held[0].close()
    watch = PeerWatch(raw, "w")
    assert [watch.find_ended(0.0), watch.find_ended(1.0)] == [{}, {}]

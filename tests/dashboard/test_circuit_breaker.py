"""A circuit breaker opens on a failure and closes by itself."""

from __future__ import annotations

from dashboard.circuit_breaker import CircuitBreaker


class Clock:
    """Seconds that pass when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_before_any_failure_the_circuit_is_closed() -> None:
    assert CircuitBreaker(10.0, Clock()).closed


def test_after_a_failure_the_circuit_is_open_until_the_time_is_up() -> None:
    clock = Clock()
    breaker = CircuitBreaker(10.0, clock)
    breaker.trip()
    clock.now = 9.9
    assert not breaker.closed
    clock.now = 10.0
    assert breaker.closed


def test_a_failure_while_open_starts_the_time_again() -> None:
    clock = Clock()
    breaker = CircuitBreaker(10.0, clock)
    breaker.trip()
    clock.now = 5.0
    breaker.trip()
    clock.now = 14.0
    assert not breaker.closed

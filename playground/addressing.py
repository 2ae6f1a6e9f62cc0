"""Which workers may take a request: those whose model it asks for, by name where others would refuse it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from engine.serving.messages import GenerateRequest, Heartbeat


def workers_with(model: str, workers: Sequence[Heartbeat]) -> list[Heartbeat]:
    """The workers with that model; all of them where it is empty."""
    return [worker for worker in workers if not model or worker.model == model]


def address_requests(
    requests: Sequence[GenerateRequest], able: Sequence[Heartbeat], workers: Sequence[Heartbeat]
) -> tuple[GenerateRequest, ...]:
    """The requests, to workers of `able` by name where not every worker is one, the idle first.

    From the shared inbox a worker with another model might take them, and refuse. A request that names a
    worker keeps it.
    """
    if len(able) == len(workers):
        return tuple(requests)
    by_load = sorted(able, key=lambda worker: worker.free == 0)
    return tuple(
        request if request.worker else replace(request, worker=by_load[index % len(by_load)].name)
        for index, request in enumerate(requests)
    )

"""Which workers may take a request: those that serve its model, by name where others would not do as well."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from engine.serving.messages import GenerateRequest, Heartbeat


def workers_with(model: str, workers: Sequence[Heartbeat]) -> list[Heartbeat]:
    """The workers that serve that model; all of them where it is empty."""
    return [worker for worker in workers if worker.find(model)]


def models_of(workers: Sequence[Heartbeat]) -> list[str]:
    """All that can be asked for, sorted."""
    return sorted({one.name for worker in workers for one in worker.served})


def address_requests(
    requests: Sequence[GenerateRequest], able: Sequence[Heartbeat], workers: Sequence[Heartbeat]
) -> tuple[GenerateRequest, ...]:
    """The requests, to workers of `able` by name where not every worker is as good: to those that have the
    model loaded, the idle first.

    From the shared inbox a worker with another model might take them, and refuse, or load it first. Yet a
    request that names a worker cannot outlive it, so none is named where each would do as well. A request
    that names a worker keeps it.
    """
    model = requests[0].model
    present = [worker for worker in able if worker.state not in ("loading", "stopping")] or able
    loaded = [worker for worker in present if _has_loaded(worker, model)] or present
    if len(able) == len(workers) and (len(loaded) == len(present) or _has_one_model_each(able)):
        return tuple(requests)
    by_load = sorted(loaded, key=lambda worker: worker.free == 0)
    return tuple(
        request if request.worker else replace(request, worker=by_load[index % len(by_load)].name)
        for index, request in enumerate(requests)
    )


def _has_one_model_each(workers: Sequence[Heartbeat]) -> bool:
    return all(len(worker.served) == 1 for worker in workers)


def _has_loaded(worker: Heartbeat, model: str) -> bool:
    found = worker.find(model)
    return found is not None and (not model or found.state == "loaded")

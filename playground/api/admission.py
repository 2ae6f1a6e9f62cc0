"""From a request to the engine's inbox: is its model served, can it do that, may the caller ask now."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from redis.exceptions import RedisError

from engine import replies
from engine.models.prompt import Prompt
from engine.serving.messages import Heartbeat
from playground import addressing, admission
from playground.addressing import address_requests
from playground.admission import Caller
from playground.api.allowance import allowance_headers
from playground.api.errors import ApiError, model_not_found, refusals
from playground.api.parameters import ApiRequest
from playground.workers import engine_redis, worker_watch


async def live_workers() -> list[Heartbeat]:
    """The workers that serve something. Raises ApiError if there is none."""
    return await _require_workers(worker_watch().look())


async def _require_workers(found: Awaitable[list[Heartbeat]]) -> list[Heartbeat]:
    with refusals():
        workers = await found
    if not workers:
        raise ApiError(replies.NO_WORKER)
    return workers


def workers_with(model: str, workers: list[Heartbeat]) -> list[Heartbeat]:
    """The workers with that model. Raises ApiError if there is none."""
    found = addressing.workers_with(model, workers)
    if not found:
        raise model_not_found(model, addressing.models_of(workers))
    return found


async def first_seen(models: Sequence[str]) -> dict[str, int]:
    """When each model was first served here, in seconds since 1970: the same whenever one asks."""
    now = int(time.time())
    pipe = engine_redis().pipeline(transaction=False)
    for model in models:
        pipe.set(f"ml:served:{model}", now, nx=True)
        pipe.get(f"ml:served:{model}")
    try:
        replies = await pipe.execute()
    except (RedisError, OSError):
        return dict.fromkeys(models, now)
    return {model: int(reply) for model, reply in zip(models, replies[1::2], strict=True)}


def check_capable(prompt: Prompt, model: str, workers: list[Heartbeat]) -> None:
    """Raises ApiError if `model` on those workers has no tokens for such a prompt.

    What a worker has not looked at yet passes: it knows better once it has.
    """
    offers = [offer for worker in workers if (offer := worker.find(model))]
    if any(offer.context == 0 for offer in offers):
        return
    model = model or workers[0].model
    if prompt.messages and not any(offer.chat for offer in offers):
        raise ApiError(
            replies.CHAT_UNSUPPORTED,
            f"The model '{model}' has no chat template; use /v1/completions",
            param="messages",
        )
    if prompt.suffix is not None and not any(offer.infill for offer in offers):
        raise ApiError(
            replies.INFILL_UNSUPPORTED,
            f"The model '{model}' has no fill-in-the-middle tokens; leave the suffix out",
            param="suffix",
        )


async def submit(request: ApiRequest, caller: Caller) -> tuple[ApiRequest, dict[str, str]]:
    """Puts every choice in the inbox, or none.

    Returns what was submitted, and what is left to the caller, as headers. Raises ApiError.
    """
    workers = await _require_workers(worker_watch().recent(request.model))
    able = workers_with(request.model, workers)
    check_capable(request.choices[0].prompt, request.model, able)
    request = replace(request, choices=address_requests(request.choices, able, workers))
    with refusals():
        _, allowance = await admission.submit(request.choices, caller, workers=workers)
    return request, allowance_headers(allowance)

"""Before any speed: every number of devices says what one device says, and what FP32 says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.bench import prompt_tokens
from engine.errors import EngineError
from engine.probe import SMALL, plain
from engine.verification import agrees, relative_error, verify
from tools.bench_node.plan import Order, Setup, other_delays

_PROMPT, _TOKENS = 45, 48
_REFERENCE_ERROR = 1e-3
"""Relative L2 distance of logits from FP32; rounding of FP16 products gives a tenth of it."""
_SPLIT_ERROR = 1e-3
"""The same between one device and several, whose sums are added in another order."""


@dataclass(frozen=True, slots=True)
class Check:
    """`same`: not only right up to rounding, but the very same tokens."""

    what: str
    devices: int
    right: bool
    same: bool
    found: str


def small_setups(order: Order) -> tuple[Setup, ...]:
    """The kinds of model that are measured, each on every number of devices."""
    rest = [Setup(config, order.most) for config in other_delays(SMALL)] if order.most > 1 else []
    kinds = (SMALL, plain(SMALL))
    return (*(Setup(config, count) for config in kinds for count in order.devices), *rest)


def against_reference(order: Order) -> Iterator[Check]:
    """Small models of each kind against the FP32 reference in NumPy."""
    for setup in small_setups(order):
        backend = open_backend(order.backend, setup.model, devices=setup.devices, options=order.options)
        try:
            yield _against_reference(backend, setup)
        finally:
            backend.close()


def _against_reference(backend: Backend, setup: Setup) -> Check:
    prompt = prompt_tokens(setup.model, _PROMPT)
    try:
        found = verify(backend, setup.model, prompt, greedy(backend, prompt, _TOKENS))
    except EngineError as error:
        return Check(setup.config.name, setup.devices, False, False, str(error))
    distance = found.logit_rel_err
    right = found.tokens_equal and distance is not None and distance < _REFERENCE_ERROR
    words = "no logits to compare" if distance is None else f"logits within {distance:.1e} of FP32"
    return Check(setup.config.name, setup.devices, right, found.tokens_equal, words)


def against_fewest(order: Order, opened: Mapping[Setup, Backend]) -> Iterator[Check]:
    """Full models on several devices against the same model on the fewest that are measured."""
    for config in (order.base, plain(order.base)):
        first, *others = [Setup(config, count) for count in order.devices]
        if first not in opened:
            continue
        prompt = prompt_tokens(first.model, min(_PROMPT, config.context // 4))
        tokens = min(_TOKENS, config.context // 4)
        wanted = greedy(opened[first], prompt, tokens)
        for setup in others:
            if setup in opened:
                yield _against(opened[first], wanted, opened[setup], prompt, setup)


def _against(
    one: Backend, wanted: Sequence[int], several: Backend, prompt: tuple[int, ...], setup: Setup
) -> Check:
    try:
        found = greedy(several, prompt, len(wanted))
        sequence = [*prompt, *found[:-1]]
        rows, theirs = one.logits(sequence), several.logits(sequence)
    except EngineError as error:
        return Check(setup.config.name, setup.devices, False, False, str(error))
    distance = relative_error(theirs, rows)
    equal = sum(a == b for a, b in zip(found, wanted, strict=True))
    right = distance < _SPLIT_ERROR and agrees(rows[len(prompt) - 1 :], found)
    words = f"{equal} of {len(wanted)} tokens equal, logits within {distance:.1e}"
    return Check(setup.config.name, setup.devices, right, equal == len(wanted), words)


def greedy(backend: Backend, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """The likeliest continuation, `tokens` long."""
    launch = backend.launch(Job(prompt, tokens))
    found: list[int] = []
    try:
        while True:
            outcome = launch.outcome  # read first: tokens may still wait in `poll` when it appears
            fresh = launch.poll(0.1)
            found.extend(token.id for token in fresh)
            if outcome is not None and not fresh:
                return found
    finally:
        launch.close()


def passed(checks: Sequence[Check], order: Order, setup: Setup) -> bool:
    """Whether neither the model nor its small twin was found wrong on so many devices."""
    twin = setup.config.name.replace(order.base.name, SMALL.name)
    return all(c.right for c in checks if c.devices == setup.devices and c.what in (setup.config.name, twin))


def all_well(checks: Sequence[Check], order: Order) -> bool:
    """Whether all were right, and models with lanes said the very same on every number of devices."""
    return all(c.right and (c.same or c.what not in (order.base.name, SMALL.name)) for c in checks)

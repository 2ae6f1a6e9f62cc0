"""Before any speed: every number of devices says what one device says, and what FP32 says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from engine.backends import open_backend
from engine.backends.base import Backend, Job
from engine.backends.running import complete
from engine.errors import EngineError
from engine.measuring.point import prompt_tokens
from engine.measuring.verification import agrees, relative_error, verify
from tools.bench_node.plan import Order, Setup

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


def against_reference(order: Order, may_begin: Callable[[], None]) -> Iterator[Check]:
    """Small models of each kind against the FP32 reference in NumPy. What `may_begin` raises ends it."""
    for setup in order.small_setups():
        may_begin()
        try:
            backend = open_backend(order.backend, setup.model, devices=setup.devices, options=order.options)
        except EngineError as error:
            yield _broken(setup, error)
            continue
        try:
            yield _against_reference(backend, setup)
        finally:
            backend.close()


def _broken(setup: Setup, error: EngineError) -> Check:
    return Check(setup.config.name, setup.devices, False, False, str(error))


def _against_reference(backend: Backend, setup: Setup) -> Check:
    prompt = prompt_tokens(setup.model, _PROMPT)
    try:
        found = verify(backend, setup.model, prompt, greedy(backend, prompt, _TOKENS))
    except EngineError as error:
        return _broken(setup, error)
    distance = found.logit_rel_err
    right = found.passed and distance is not None and distance < _REFERENCE_ERROR
    words = "no logits to compare" if distance is None else f"logits within {distance:.1e} of FP32"
    return Check(setup.config.name, setup.devices, right, found.tokens_equal, words)


@dataclass(frozen=True, slots=True)
class _Said:
    """What a model says on the fewest devices, after which prompt."""

    backend: Backend
    prompt: tuple[int, ...]
    tokens: Sequence[int]


def against_fewest(opened: Mapping[Setup, Backend], may_begin: Callable[[], None]) -> Iterator[Check]:
    """A full model on the fewest devices against the FP32 reference; on more against the fewest.

    What `may_begin` raises ends it.
    """
    said: _Said | None = None
    for setup in sorted(opened, key=lambda setup: setup.devices):
        may_begin()
        try:
            if said is None:
                check, said = _fewest(opened[setup], setup)
            else:
                check = _against(said, opened[setup], setup)
        except EngineError as error:
            check = _broken(setup, error)
        yield check


def _fewest(backend: Backend, setup: Setup) -> tuple[Check, _Said | None]:
    context = setup.config.context
    prompt = prompt_tokens(setup.model, min(_PROMPT, context // 4))
    tokens = greedy(backend, prompt, min(_TOKENS, context // 4))
    found = verify(backend, setup.model, prompt, tokens)
    equal = "are" if found.tokens_equal else "are not"
    words = f"tokens {equal} those of the {found.against}, logits within {found.logit_rel_err:.1e}"
    said = _Said(backend, prompt, tokens) if found.passed else None
    return Check(setup.config.name, setup.devices, found.passed, found.tokens_equal, words), said


def _against(said: _Said, several: Backend, setup: Setup) -> Check:
    found = greedy(several, said.prompt, len(said.tokens))
    sequence = [*said.prompt, *found[:-1]]
    rows, theirs = said.backend.logits(sequence), several.logits(sequence)
    distance = relative_error(theirs, rows)
    equal = sum(a == b for a, b in zip(found, said.tokens, strict=True))
    right = distance < _SPLIT_ERROR and agrees(rows[len(said.prompt) - 1 :], found)
    words = f"{equal} of {len(found)} tokens equal, logits within {distance:.1e}"
    return Check(setup.config.name, setup.devices, right, equal == len(found), words)


def greedy(backend: Backend, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """The likeliest continuation, `tokens` long."""
    return [token.id for token in complete(backend, Job(prompt, tokens))]


def passed(checks: Sequence[Check], order: Order, setup: Setup) -> bool:
    """Whether both the model and its small twin were found right on so many devices."""
    found = {check.what: check.right for check in checks if check.devices == setup.devices}
    return all(found.get(name, False) for name in (setup.config.name, order.twin(setup.config)))


def all_well(checks: Sequence[Check], order: Order) -> bool:
    """Whether all was checked and right, and the model with lanes said the very same on any devices."""
    checked = all(passed(checks, order, setup) for setup in order.setups())
    same = all(c.same for c in checks if c.what in (order.base.name, order.twin(order.base)))
    return checked and same

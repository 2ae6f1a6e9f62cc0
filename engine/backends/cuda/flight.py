"""How many copies of weights an SM asks for at once."""

from __future__ import annotations

from engine.backends.cuda.constants import FP8_SLOT_UNITS, Tuning
from engine.backends.cuda.expert_region import ExpertRegion
from engine.backends.cuda.tape import Matrix, Plan
from engine.models.storage import Storage


def slots_in_flight(plan: Plan, tuning: Tuning, slot_units: int) -> int:
    """Many keep memory busy, few let exchanges through.

    Of FP8's larger slots two are enough: memory waits for their products.
    """
    if tuning.slots_in_flight is not None:
        return tuning.slots_in_flight
    phases = 4 * plan.config.layers + 1
    experts = ExpertRegion.of(plan).met_bytes / plan.cores
    bytes_a_phase = (max(plan.tape_bytes(core) for core in range(plan.cores)) + experts) / phases
    most = 2 if plan.holds(Storage.FP8_BLOCK) and slot_units == FP8_SLOT_UNITS else 3
    return min(most, 1 if bytes_a_phase < 64 << 10 else 2 if bytes_a_phase < 350 << 10 else 3)


def expert_slots_in_flight(plan: Plan, tuning: Tuning, requests: int) -> int:
    """As measured, while experts are read: then nobody waits for an exchange that copies could hold up."""
    if tuning.expert_slots_in_flight is not None:
        return tuning.expert_slots_in_flight
    fp8 = plan.config.experts is not None and plan.storage(0, Matrix.GATE_UP) is Storage.FP8_BLOCK
    return 4 if fp8 and requests == 1 else 3

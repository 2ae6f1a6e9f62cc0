"""How much of a token a phase is: some of the kernels' ways are faster for some models alone, as measured."""

from __future__ import annotations

from engine.backends.cuda.expert_region import ExpertRegion
from engine.backends.cuda.sharding import Sharding
from engine.backends.cuda.tape import Plan, Storages, any_packed, plan
from engine.models.storage import Storage


def has_short_phases(plan: Plan) -> bool:
    """Whether exchanges are most of a token: an SM seldom waits for weights then."""
    return bytes_a_phase(plan) < 64 << 10


def has_long_phases(plan: Plan) -> bool:
    """Whether weights are so much of a token that an exchange more or less does not show."""
    return bytes_a_phase(plan) >= 350 << 10


def bytes_a_phase(plan: Plan) -> float:
    """Of the SM that reads most."""
    phases = 4 * plan.config.layers + 1
    experts = ExpertRegion.of(plan).met_bytes / plan.cores
    return (max(plan.tape_bytes(core) for core in range(plan.cores)) + experts) / phases


def has_pairs(plan: Plan, sharding: Sharding) -> bool:
    """Whether SMs are in clusters of two, which join two parts of a head in their shared memory.

    As measured: with heads of 128, of which an SM's warps hold 256 positions. Qwen2.5-Coder-1.5B is 2 to 3 %
    faster, Llama-3.1-8B up to 0.9 % slower, and SmolLM2, with heads of 64, 2 %.
    """
    of_size = plan.config.head_dim == 128 and not has_long_phases(plan)
    return of_size and plan.cores % 2 == 0 and is_timed(sharding, plan.storages)


def asks_for_items(plan: Plan) -> bool:
    """Whether an SM's producer asks in each layer what the SM attends to, also where the position alone says
    that nothing comes through the ring: Llama-3.2-1B is 0.5 to 0.8 % faster by it."""
    return plan.config.head_dim == 64 and not has_short_phases(plan) and not has_long_phases(plan)


def all_warps_multiply(plan: Plan) -> bool:
    """Whether a warp that no chunk of a slot falls to multiplies zeros in place of waiting for the others:
    Llama-3.2-1B is 0.2 % faster by it, Laneformer-2B 0.3 and SmolLM2 0.7 % slower. Phases between those of
    SmolLM2 and the 1B were not timed."""
    return asks_for_items(plan) and bytes_a_phase(plan) >= 128 << 10


def has_equal_shares(sharding: Sharding, storages: Storages) -> bool:
    """Whether SMs have equal shares of a matrix, or none, where that can be (tape.plan).

    The code of a layer has to stay in a cache of instructions that 16 to 18 SMs share, some 100 KB. Dense
    models in 16 bits fit. With experts and with FP8 blocks it is more, and each size of group less counts:
    GPT-OSS-20B is 1.3 % faster. With the digits of long vectors in less code beside it Qwen3-8B in FP8 is
    1.1 % faster and Qwen3-30B-A3B as fast as before. On two GPUs, where sizes differ all the same, there was
    nothing to gain: GPT-OSS-120B 0.3 % slower, Qwen3-30B-A3B 0.3 % faster.
    """
    has_more_code = sharding.whole.experts is not None or any(Storage.FP8_BLOCK in of for of in storages)
    return has_more_code and sharding.ranks == 1


def has_halves(sharding: Sharding, storages: Storages) -> bool:
    """Whether SMs may have halves of tiles of attn_out and down, where that deals rows out more evenly.

    Qwen2.5-Coder-1.5B is 1.9 % faster by it, Qwen2.5-7B 1.2 %. Several GPUs were not timed, and where each
    has a lane the head is told sums of squares of whole tiles (rows.cuh).
    """
    return is_timed(sharding, storages) and not sharding.whole.post_norms


def plan_of(sharding: Sharding, cores: int, storages: Storages) -> Plan:
    """How each GPU's part of a model is shared out over its SMs."""
    equal, halves = has_equal_shares(sharding, storages), has_halves(sharding, storages)
    return plan(sharding.part, cores, storages, equal=equal, halves=halves)


def is_timed(sharding: Sharding, storages: Storages) -> bool:
    """Whether it is a dense model in 16 bits on one GPU: others keep what they were timed with."""
    c = sharding.whole
    is_plain = c.experts is None and c.lanes.count == 1 and not any_packed(storages)
    return is_plain and sharding.ranks == 1

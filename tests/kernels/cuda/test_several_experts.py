"""Several requests of a mixture of experts in a launch: each leaves the tokens, keys and values that it
leaves alone, to the bit, whomever it and the others meet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.backends.base import Job
from engine.backends.cuda import reading
from engine.backends.cuda.constants import Tuning
from engine.models.config import Experts, ModelConfig
from engine.models.storage import Storage
from engine.models.weights import RandomWeights
from tests.engine.models.packed_weights import RandomPacked, all_in
from tests.gpu.models import RoutedWeights
from tests.kernels.cuda.emulation.scheduled import EmulatedBackend
from tests.kernels.cuda.emulation.several import EmulatedRows, Request, team
from tests.kernels.cuda.test_emulation import EXPERTS, GPT_OSS
from tests.kernels.cuda.test_packed_emulation import EXPERTS as PACKED
from tests.kernels.cuda.test_several import SAMPLINGS, check, follow, prompt
from tests.nightly import at_night

CORES = 3
KINDS = {"scores of heads": EXPERTS, "router biases": GPT_OSS}
CUT = {name: replace(config, heads=4, kv_heads=2, ffn=64) for name, config in KINDS.items()}
"""They fall into parts for two GPUs."""
PADDED = replace(GPT_OSS, heads=4, kv_heads=4, ffn=160)
"""Five chunks of an expert's columns on four GPUs with room for two: the last one has padding alone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kernels of one shape are compiled once for all tests."""
    return tmp_path_factory.mktemp("several-experts")


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("scores of heads", 4),
        ("router biases", 2),
        at_night("scores of heads", 2),
        at_night("router biases", 4),
        at_night("scores of heads", 8),
        at_night("router biases", 8),
    ],
)
def test_each_leaves_what_it_leaves_alone(kind: str, rows: int, folder: Path) -> None:
    check(RandomWeights(KINDS[kind], 3), rows, CORES, folder)


@pytest.mark.parametrize("kind", ["scores of heads", at_night("router biases")])
def test_sms_that_equal_shares_leave_out_go_along(kind: str, folder: Path) -> None:
    """The last of five has no tiles of the experts either; those that all meet are shared out anew."""
    check(RandomWeights(KINDS[kind], 3), 2, 5, folder, equal=True)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        at_night("scores of heads", 2),
        ("router biases", 2),
        at_night("scores of heads", 4),
        at_night("router biases", 4),
        at_night("scores of heads", 8),
    ],
)
def test_each_leaves_on_several_gpus_what_it_leaves_alone_there(kind: str, rows: int, folder: Path) -> None:
    check(RandomWeights(CUT[kind], 3), rows, CORES, folder, ranks=2)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "cores", "ranks"),
    [
        (PADDED, 2, 4),
        (replace(CUT["scores of heads"], kv_heads=1), 2, 2),
        (replace(CUT["scores of heads"], kv_heads=4, ffn=128), 2, 4),
        (replace(CUT["scores of heads"], experts=Experts(32, 2)), 20, 2),
    ],
    ids=["padded columns", "one KV head", "four GPUs", "rows of the router and no tiles"],
)
def test_cuts_of_all_kinds_leave_the_same(config: ModelConfig, cores: int, ranks: int, folder: Path) -> None:
    check(RandomWeights(config, 3), 2, cores, folder, ranks=ranks)


@pytest.mark.parametrize(
    "router",
    [[3.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0], [0.0] * 8, [0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0]],
    ids=["all meet the same", "all scores equal", "more at the top than are met"],
)
def test_who_meets_the_same_experts_or_scores_them_alike_leaves_the_same(
    router: list[float], folder: Path
) -> None:
    check(RoutedWeights(EXPERTS, 3, router), 4, CORES, folder)


MEETS_THE_FIRST_TWO = [3.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("rows", [4, at_night(8)])
def test_gates_and_ups_that_all_meet_are_read_once(rows: int, folder: Path) -> None:
    """Each further request of those who meet the same has no more read than its own downs."""
    passes = 2
    gpu = EmulatedRows(
        *team(folder, RoutedWeights(EXPERTS, 3, MEETS_THE_FIRST_TWO), CORES, 1, requests=rows, filters=True)
    )

    def copied(requests: int) -> int:
        before = gpu.gpu.library.copied_bytes()
        gpu.launch([Request(prompt(1, 1), passes) for _ in range(requests)])
        return int(gpu.gpu.library.copied_bytes() - before)

    assert EXPERTS.experts
    downs = 2 * EXPERTS.hidden * EXPERTS.ffn * EXPERTS.experts.chosen * EXPERTS.layers
    assert copied(rows) - copied(1) == (rows - 1) * passes * downs


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "cores"),
    [
        (replace(EXPERTS, experts=Experts(32, 2)), 20),
        (replace(EXPERTS, hidden=32, heads=1, head_dim=32, vocab=72, experts=Experts(8, 1)), 9),
        (replace(EXPERTS, experts=Experts(8, 3, renormalise=False)), 2),
        (replace(GPT_OSS, hidden=288, ffn=96), 5),
    ],
    ids=["rows of the router and no tiles", "no tile of the experts", "not renormalised", "wide"],
)
def test_shares_of_all_kinds_leave_the_same(config: ModelConfig, cores: int, folder: Path) -> None:
    check(RandomWeights(config, 3), 2, cores, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("storage", PACKED)
@pytest.mark.parametrize("rows", [2, 8])
def test_packed_experts_leave_the_same(storage: Storage, rows: int, folder: Path) -> None:
    weights = RandomPacked(PACKED[storage], lambda name: storage if ".experts." in name else Storage.F16, 3)
    check(weights, rows, CORES, folder)


@pytest.mark.nightly
def test_where_a_tile_stands_in_its_group_changes_no_sum(folder: Path) -> None:
    """In slots of an odd number of products, three."""
    config = replace(PACKED[Storage.FP8_BLOCK], layers=1, windows=(0,), hidden=1312, experts=Experts(4, 2))
    storages = {True: Storage.FP8_BLOCK, False: Storage.F16}
    weights = RandomPacked(config, lambda name: storages[".experts." in name], 3)
    check(weights, 4, 32, folder, Tuning(slot_units=80))


@pytest.mark.nightly
def test_experts_beside_packed_attention_leave_the_same(folder: Path) -> None:
    check(RandomPacked(PACKED[Storage.FP8_BLOCK], all_in(Storage.FP8_BLOCK), 3), 4, CORES, folder)


@pytest.mark.nightly
@pytest.mark.parametrize("storage", PACKED)
def test_packed_experts_on_several_gpus_leave_the_same(storage: Storage, folder: Path) -> None:
    whole = PACKED[storage]
    config = replace(whole, heads=4, kv_heads=2, ffn=2 * whole.ffn)
    weights = RandomPacked(config, lambda name: storage if ".experts." in name else Storage.F16, 3)
    check(weights, 4, CORES, folder, ranks=2)


@pytest.mark.nightly
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("kind", CUT)
def test_who_joins_and_leaves_gets_what_it_gets_alone(
    kind: str, ranks: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "SHARES_PIECE", 4)
    backend = EmulatedBackend(folder, RandomWeights(CUT[kind], 3), CORES, 4, filters=True, ranks=ranks)
    scheduler = backend.scheduler
    jobs = [
        Job(tuple(prompt(1, 3)), 6, SAMPLINGS[1]),
        Job(tuple(prompt(2, 9)), 2, SAMPLINGS[0]),
        Job(tuple(prompt(3, 2)), 2, SAMPLINGS[3]),
    ]
    expected = [follow(scheduler.join(job)) for job in jobs]

    rows = [scheduler.join(job) for job in jobs]

    assert [follow(row) for row in rows] == expected
    scheduler.settle()
    assert max(backend.launches) == 3

import sys
from types import ModuleType, SimpleNamespace

import pytest

from engine.backends import BACKENDS, WITH_SYNC, availability, cpu, open_backend
from engine.backends.base import SYNCS
from engine.backends.cuda.monokernel import kernel_headers
from engine.backends.cuda.options import parse_options
from engine.errors import BackendUnavailable
from engine.models.catalogue import open_model
from engine.models.config import ModelConfig
from engine.models.weights import RandomWeights
from engine.progress import Progress

TINY = ModelConfig("tiny", hidden=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn=16, vocab=32, context=16)
MODEL = SimpleNamespace(config=TINY, weights=RandomWeights(TINY))


def test_every_backend_says_whether_it_can_run_and_why() -> None:
    rows = availability()

    assert [name for name, _, _ in rows] == list(BACKENDS)
    assert all(sentence for _, _, sentence in rows)
    assert ("numpy", True) in [(name, usable) for name, usable, _ in rows]


def test_what_is_there_is_described_to_who_asks_and_not_looked_for_at_each_opening(monkeypatch) -> None:
    asked = []
    install(monkeypatch, "cuda", usable=True)
    monkeypatch.setattr(sys.modules["engine.backends.cuda"], "describe", lambda: asked.append(1) or "4 GPUs")
    open_backend("cuda", MODEL)
    assert not asked
    assert ("cuda", True, "4 GPUs") in availability()


def test_numpy_opens_and_names_itself() -> None:
    assert open_backend("numpy", MODEL).name == "numpy"


def test_auto_falls_to_numpy_when_nothing_faster_can_run(monkeypatch) -> None:
    install(monkeypatch, "cpu", usable=False)
    install(monkeypatch, "cuda", usable=False)

    assert open_backend("auto", MODEL).name == "numpy"


def test_auto_prefers_cuda_to_cpu_to_numpy(monkeypatch) -> None:
    install(monkeypatch, "cpu", usable=True)
    install(monkeypatch, "cuda", usable=False)
    assert open_backend("auto", MODEL).name == "cpu"

    install(monkeypatch, "cuda", usable=True)
    assert open_backend("auto", MODEL).name == "cuda"


def test_an_unusable_backend_is_refused_with_its_own_reason(monkeypatch) -> None:
    install(monkeypatch, "cuda", usable=False)

    with pytest.raises(BackendUnavailable, match="cuda cannot run here: there is no cuda in this test"):
        open_backend("cuda", MODEL)


def test_a_module_that_cannot_be_imported_counts_as_unavailable(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.backends.cuda", None)

    with pytest.raises(BackendUnavailable, match="cannot be imported"):
        open_backend("cuda", MODEL)


def test_an_empty_folder_in_the_place_of_a_backend_counts_as_unavailable(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "engine.backends.cuda", ModuleType("engine.backends.cuda"))

    assert ("cuda", False) in [(name, usable) for name, usable, _ in availability()]


def test_devices_and_options_reach_the_backend(monkeypatch) -> None:
    seen = install(monkeypatch, "cuda", usable=True)

    open_backend("cuda", MODEL, devices=4, options={"graph": True})

    assert (seen["devices"], seen["options"]) == (4, {"graph": True})


def test_whoever_waits_hears_how_far_the_opening_is(monkeypatch) -> None:
    seen = install(monkeypatch, "cuda", usable=True)
    heard = []

    open_backend("cuda", MODEL, progress=heard.append)
    seen["progress"](Progress(3, 9, "layers", "packing weights"))

    assert heard == [Progress(3, 9, "layers", "packing weights")]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("tpu", {}, "no backend 'tpu'; there are numpy, cpu, cuda"),
        ("numpy", {"devices": 0}, "devices is 0"),
        ("numpy", {"devices": 2}, "devices is 2; the backend numpy has 1"),
        ("numpy", {"options": {"graph": True}}, "no option 'graph'; it takes threads"),
        ("numpy", {"options": {"sync": "barrier"}}, "no option 'sync'"),
        ("numpy", {"options": {"threads": 0}}, "threads is 0; it must be"),
        ("numpy", {"options": {"threads": True}}, "threads is True; it must be"),
        ("numpy", {"options": {"rows": True}}, "rows is True; it must be"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_words(name, settings, message) -> None:
    with pytest.raises(BackendUnavailable, match=message):
        open_backend(name, MODEL, **settings)


@pytest.mark.parametrize("name", WITH_SYNC)
def test_a_way_to_synchronise_that_there_is_not_is_refused_with_those_there_are(name) -> None:
    parse = {"cpu": lambda options: cpu._parse(options, 1), "cuda": parse_options}[name]
    for sync in SYNCS:
        parse({"sync": sync})
    with pytest.raises(BackendUnavailable, match="sync is 'prayer'; allowed are mailbox, barrier"):
        parse({"sync": "prayer"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots_in_flight": 0}, "slots_in_flight is 0; it must be a whole number, at least 1"),
        ({"slots_in_flight": True}, "slots_in_flight is True"),
        ({"expert_slots_in_flight": "3"}, "expert_slots_in_flight is '3'"),
        ({"quiet_slots": 1.5}, "quiet_slots is 1.5"),
        ({"quiet_slots": -1}, "quiet_slots is -1; it must be a whole number, at least 0"),
    ],
)
def test_slots_asked_for_at_once_on_gpus_are_whole_numbers(options, message) -> None:
    with pytest.raises(BackendUnavailable, match=message):
        parse_options(options)
    assert parse_options({"quiet_slots": 0}).tuning.quiet_slots == 0


def test_a_barrier_on_gpus_is_another_kernel() -> None:
    with_barrier, without = (
        kernel_headers(open_model("random:tiny-laneformer"), 1, 132, {"sync": sync})
        for sync in ("barrier", "mailbox")
    )
    assert with_barrier != without


def test_a_cache_in_fp8_on_gpus_is_another_kernel_of_one_request() -> None:
    model = open_model("random:tiny-laneformer")
    texts = [
        kernel_headers(model, 1, 132, options)[0] for options in ({"cache": "fp8"}, {"cache": "fp16"}, {})
    ]
    assert texts[1] == texts[2]
    assert "constexpr bool FP8_CACHE = true;" in texts[0]
    assert "constexpr bool FP8_CACHE = false;" in texts[1]
    assert parse_options({"cache": "fp8", "rows": 2}).rows == 2, "of which the backend then has one"


def install(monkeypatch, name: str, *, usable: bool) -> dict:
    """Puts a module in the place of a native backend; returns what its `open` will have been given."""
    seen: dict = {}
    module = ModuleType(f"engine.backends.{name}")

    def opened(model, *, devices, options, progress):
        seen.update(devices=devices, options=options, progress=progress)
        return SimpleNamespace(name=name)

    module.available = lambda: (usable, f"there is {'a' if usable else 'no'} {name} in this test")
    module.describe = lambda: f"{name}, described"
    module.open = opened
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return seen

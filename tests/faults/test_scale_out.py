"""More of the same parts on one Redis: workers share the load, web processes each other's streams."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.models.prompt import Prompt
from engine.serving.client import Client
from engine.serving.messages import GenerateRequest, Started
from tests.faults.conftest import Figures
from tests.faults.pages import Socket, Tally, Visitor, session_of, source_address, text_of
from tests.faults.product import Product, at_the_same_time, load, running_product
from tests.faults.proxy import running_nginx
from tests.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TOKENS = 200
TOK_S = 400
REQUESTS = 12
ATTEMPTS = 3


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    """Two web processes, and one process of four workers."""
    with running_product(tmp_path_factory.mktemp("site"), web=2) as found:
        yield found


def test_two_and_four_workers_share_what_comes(site: Product, figures: Figures) -> None:
    took = {}
    for count in (1, 2, 4):
        names = [f"w{count}-{number}" for number in range(count)]
        site.add(f"workers-{count}", "-m", "tests.faults.many_workers", str(TOK_S), *names)
        site.wait_for_workers(count)
        for attempt in range(ATTEMPTS):
            began = time.monotonic()
            served = _serve(site.redis_url, f"of-{count}-{attempt}")
            took[count] = time.monotonic() - began
            if max(served.values()) <= REQUESTS // count + 2:
                break  # else one was kept from its turn by what this machine does beside
        assert set(served) == set(names), served
        assert max(served.values()) <= REQUESTS // count + 2
        site.services.pop(f"workers-{count}").stop()
        wait_until(lambda: not _names(site.redis_url))
    said = ", ".join(f"{count}: {seconds:.1f} s" for count, seconds in took.items())
    figures(
        f"{REQUESTS} requests of {TOKENS} tokens at {TOK_S} tok/s, by workers",
        "",
        f"{said}, load {load():.0f}",
    )
    assert took[4] < took[1]


def test_a_stream_goes_on_at_another_web_process(site: Product) -> None:
    site.add_paced("paced-0", TOK_S)
    site.wait_for_workers(1)
    text = text_of(site, 800)
    cookie = session_of(site.ports[0])
    first = Socket(site.ports[0], cookie)
    first.say(type="start", prompt="to", max_tokens=800)
    shown, count, generation = "", 0, ""
    for page in (first, None):
        here = page or Socket(site.ports[1], cookie)
        if page is None:
            here.say(type="resume", generation=generation, after=count)
        while (heard := here.hear(PATIENCE_S)) is not None and heard["type"] != "done":
            generation = heard.get("generation", generation)
            if heard["type"] == "tokens" and heard["seq"] + heard["n"] > count:
                assert heard["seq"] == count
                shown, count = shown + heard["text"], heard["seq"] + heard["n"]
                here.say(type="ack", seq=count)
            if page is not None and count > 100:
                break
        here.connection.close()
    assert heard is not None
    assert shown + heard["text"] == text


def test_a_rolling_restart_loses_nothing(site: Product, figures: Figures) -> None:
    for number in range(2):
        site.add_paced(f"rolling-{number}", TOK_S)
    site.wait_for_workers(2)
    tally, text = Tally(), text_of(site, 600)
    asked = itertools.repeat(({"prompt": "to", "max_tokens": 600}, text))

    def page(number: int) -> Callable[[threading.Event], None]:
        ports = site.ports[number % 2 :] + site.ports[: number % 2]
        visitor = Visitor(ports, tally, source_address(number))
        return lambda stopping: visitor.run(asked, stopping)

    with at_the_same_time(*map(page, range(3)), patience_s=120):
        for name in ("rolling-0", "rolling-1", "web-0", "web-1"):
            site.services[name].stop()
            site.services[name].start()
            if name.startswith("web"):
                site.wait_for_web()
            else:
                wait_until(lambda name=name: name in _names(site.redis_url))
    refused = tally.again.total() + tally.refused.total()
    wholly = f"{tally.whole} whole, {len(tally.wrong)} wrong, {refused} refused"
    figures("two workers, two web processes restarted in turn", "0 wrong, 0 refused", wholly)
    assert (tally.wrong, dict(tally.again), dict(tally.refused)) == ([], {}, {})
    assert tally.whole >= 3


@pytest.mark.faults
@pytest.mark.nightly
def test_an_update_refuses_requests_for_less_than_five_seconds(
    site: Product, figures: Figures, tmp_path: Path
) -> None:
    try:
        with running_nginx(tmp_path, site.ports) as port:
            wait_until(lambda: site.get("/healthz", port)[0] == 200)
            asked, refused_s = _ask_while_web_is_replaced(site, port)
    except FileNotFoundError:
        pytest.skip("there is no nginx here")
    said = f"{refused_s:.1f} s, {asked} requests, load {load():.0f}"
    figures("update: two web processes behind nginx replaced in turn, requests refused for", "< 5 s", said)
    assert asked > 10
    assert refused_s < 5.0


def _ask_while_web_is_replaced(site: Product, port: int) -> tuple[int, float]:
    """Asks for the page all the time; returns how often, and for how long in all there was no answer."""
    asked, refused_s = 0, 0.0

    def ask(stopping: threading.Event) -> None:
        nonlocal asked, refused_s
        at = time.monotonic()
        while not stopping.wait(0.05):
            status, _ = site.get("/", port)
            now = time.monotonic()
            asked, refused_s = asked + 1, refused_s + (0.0 if status == 200 else now - at)
            at = now

    with at_the_same_time(ask):
        for name, own in zip(("web-0", "web-1"), site.ports, strict=True):
            site.services[name].stop()
            site.services[name].start()
            wait_until(lambda own=own: site.get("/healthz", own)[0] == 200)
    return asked, refused_s


def _serve(redis_url: str, name: str) -> Counter[str]:
    """How many of REQUESTS, submitted at once, each worker took."""
    served: Counter[str] = Counter()
    with Client(redis_url) as client:
        ids = [f"{name}-{number}" for number in range(REQUESTS)]
        for one in ids:
            client.submit(GenerateRequest(one, Prompt("to"), max_tokens=TOKENS))
        for one in ids:
            frames = [entry.frame for entry in client.frames(one, submitted=True)]
            served.update(frame.worker for frame in frames if isinstance(frame, Started))
    return served


def _names(redis_url: str) -> list[str]:
    with Client(redis_url) as client:
        return [worker.name for worker in client.workers()]

"""Python runs in the browser: a person's programs, their tests, their limits."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.conftest import SCREENSHOTS
from tests.e2e.run_panel import RunPanel
from tests.e2e.stack import Stack
from tests.e2e.test_looks import scrolls_sideways, serious_violations

ADD = "def add(a, b):\n    return a + b\n"
TEST_ADD = "def test_add():\n    assert add(1, 2) == 3\n"


@pytest.fixture
def panel(page: Page) -> RunPanel:
    return RunPanel.open(page)


def test_python_is_fetched_at_the_first_run_from_this_host_alone(
    context: BrowserContext, page: Page, stack: Stack
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    panel = RunPanel.open(page)
    assert not [url for url in asked if "/run/" in url or "sandbox" in url]
    panel.run("print('hello')\n")
    expect(page.get_by_role("progressbar", name="Loading of Python")).to_be_visible()
    panel.wait_for("passed")
    expect(panel.headline).to_contain_text("Ran to its end in")
    expect(panel.printed).to_have_text("hello\n")
    assert [url for url in asked if "pyodide.asm" in url]
    assert {urlsplit(url).netloc for url in asked if url.startswith("http")} == {urlsplit(stack.url).netloc}
    for url in asked:
        if "/static/run/" in url:
            headers = page.request.fetch(url, method="HEAD").headers
            assert "immutable" in headers["cache-control"]
            assert url.endswith(".zip") or headers["content-encoding"] == "gzip"


def test_runs_follow_one_another_each_in_a_fresh_interpreter(panel: RunPanel) -> None:
    page = panel.page
    top = "document.getElementById('run-start').getBoundingClientRect().top"
    before = page.evaluate(top)
    panel.run(f"{ADD}import builtins\nbuiltins.left = 1\nprint('one')\n", TEST_ADD)
    panel.wait_for("passed")
    expect(panel.headline).to_contain_text("The test passed in")
    panel.run(f"{ADD}print(left)\n", "")
    panel.wait_for("failed")
    said = "NameError: name 'left' is not defined"
    expect(panel.headline).to_have_text(f"The program failed in line 3: {said}.")
    expect(page.locator("#run-result").get_by_text(said)).to_have_count(2)  # and in the folded traceback
    expect(page.locator("#run-result").get_by_text(said).filter(visible=True)).to_have_count(1)
    page.get_by_role("button", name="Line 3 of program.py").click()
    expect(page.locator("#run-program .cm-line").nth(2)).to_be_in_viewport()
    in_line = "() => { const { anchorNode } = getSelection(); return anchorNode.parentElement.textContent; }"
    assert "print(left)" in page.evaluate(in_line)

    panel.run(ADD, "class TestAdd:\n    def test_add(self):\n        assert add(1, 2) == 4\n")
    panel.wait_for("failed")
    expect(panel.headline).to_contain_text("0 of 1 test passed in")
    panel.run(ADD, "def check_add():\n    assert add(1, 2) == 4\n")
    expect(panel.headline).to_contain_text("No tests were found.")

    tests = f"{TEST_ADD}def test_wrong():\n    assert add(1, 2) == 4\n"
    panel.run("import sys\nprint('oops', file=sys.stderr)\n" + ADD, tests)
    panel.wait_for("failed")
    expect(panel.headline).to_contain_text("1 of 2 tests passed in")
    expect(panel.outcomes).to_have_count(2)
    expect(panel.outcomes.nth(1)).to_contain_text("add(1, 2) is 3")
    expect(panel.printed).to_have_text("oops\n")
    expect(page.locator("#announcer")).to_contain_text("1 of 2 tests passed")

    page.locator("#run-time").select_option("1000")
    panel.run("print('before')\n", "def test_hangs():\n    while True:\n        pass\n")
    panel.wait_for("failed")
    expect(panel.headline).to_contain_text("Ended at its time limit of 1.00 s: test_hangs was still running.")
    expect(panel.printed).to_have_text("before\n")

    panel.run("import itertools\nfor n in itertools.count():\n    print(n)\n")
    panel.wait_for("failed")
    expect(panel.headline).to_contain_text("it printed more than 64 kB")
    assert len(panel.printed.inner_text()) <= 64 * 1024

    page.locator("#run-memory").select_option("64")
    panel.run("held = []\nwhile True:\n    held.append(bytearray(10**6))\n")
    panel.wait_for("failed")
    expect(panel.headline).to_have_text(
        "The program failed in line 3: MemoryError. Its memory limit is 64 MB."
    )
    assert page.evaluate(top) == before


def test_a_run_is_stopped_by_key_and_by_button_and_the_next_one_works(panel: RunPanel) -> None:
    page = panel.page
    page.locator("#run-time").select_option("60000")
    forever = "while True:\n    pass\n"
    panel.run(forever)
    expect(panel.headline).to_have_text("Running.", timeout=30_000)
    page.keyboard.press("Escape")
    expect(panel.headline).to_contain_text("Stopped after")
    page.get_by_role("button", name="Run program").click()
    expect(panel.headline).to_have_text("Running.", timeout=30_000)
    expect(page.locator("#run-stop")).to_be_focused()
    page.keyboard.press("Enter")
    expect(panel.headline).to_contain_text("Stopped after")
    expect(page.get_by_role("button", name="Run program")).to_be_focused()
    panel.run("print('again')\n")
    panel.wait_for("passed")


def test_a_program_reaches_neither_the_network_nor_the_page(panel: RunPanel) -> None:
    attempts = {
        "import js": "ModuleNotFoundError",
        "import pyodide_js": "ModuleNotFoundError",
        "from pyodide.code import run_js\nrun_js('1')": "ModuleNotFoundError",
        "from pyodide.http import open_url\nopen_url('/healthz')": "NameError",
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1/')": "URLError",
        "from pyodide.ffi import to_js\nto_js([1]).constructor.constructor('return 1')()": "EvalError",
    }
    tests = [
        f"def test_{n}():\n    {attempt.replace(chr(10), chr(10) + '    ')}\n"
        for n, attempt in enumerate(attempts)
    ]
    panel.run("pass\n", "\n".join(tests))
    panel.wait_for("failed")
    expect(panel.outcomes).to_have_count(len(attempts))
    for n, refusal in enumerate(attempts.values()):
        expect(panel.outcomes.nth(n)).to_contain_text(refusal)


def test_the_frame_itself_can_neither_connect_nor_read_what_belongs_to_the_site(
    panel: RunPanel, complaints: list[str]
) -> None:
    panel.run("print('ready')\n")
    panel.wait_for("passed")
    [frame] = [frame for frame in panel.page.frames if frame.url.endswith("/sandbox/")]
    attempts = """async () => {
      const tried = (act) => Promise.resolve().then(act).then(() => "allowed", (error) => error.name);
      return {
        origin: self.origin,
        fetch: await tried(() => fetch("/healthz")),
        cookie: await tried(() => document.cookie),
        storage: await tried(() => localStorage),
        page: await tried(() => parent.document),
      };
    }"""
    found = frame.evaluate(attempts)
    assert found == {
        "origin": "null",
        "fetch": "TypeError",
        "cookie": "SecurityError",
        "storage": "SecurityError",
        "page": "SecurityError",
    }
    assert complaints.pop().startswith(("Connecting to", "Refused to connect", "Fetch API cannot load"))
    complaints.clear()


def test_the_tab_is_readable_and_accessible_in_every_shape(panel: RunPanel) -> None:
    page = panel.page
    panel.run(f"{ADD}print('hello')\n", f"{TEST_ADD}def test_wrong():\n    assert add(1, 2) == 4\n")
    panel.wait_for("failed")
    for shape, scheme, width in (("light", "light", 1280), ("dark", "dark", 1280), ("narrow", "dark", 320)):
        page.set_viewport_size({"width": width, "height": 800})
        page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
        page.screenshot(path=SCREENSHOTS / f"run-it-{shape}.png", full_page=True)
        assert not scrolls_sideways(page)
        assert serious_violations(page) == []

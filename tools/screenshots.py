"""Takes the README's pictures from the running product: `make screenshots`.

Starts everything as `make run` does, in a folder and on a port of its own, runs an example, imports the
measurements of benchmarks/, and writes docs/images/playground.png and docs/images/dashboard.png.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from engine import settings
from tools.browser import find_chromium
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
START_S = 300
RUN_S = 180
STOP_S = 60
IMPORT_S = 120
MOST_BYTES = 200_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}


@contextmanager
def running_product(environment: dict[str, str], log: Path) -> Iterator[None]:
    """Everything that `make run` starts, up and ready; what it prints is in `log`."""
    with log.open("w") as out:
        command = [sys.executable, "-m", "tools.supervisor"]
        supervisor = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        say("starting everything")
        wait_until_it_runs(supervisor, log)
        yield
    finally:
        supervisor.send_signal(signal.SIGINT)
        try:
            supervisor.wait(STOP_S)
        except subprocess.TimeoutExpired:
            say(f"the product did not end within {STOP_S} s: it is killed")
            supervisor.kill()


def wait_until_it_runs(supervisor: subprocess.Popen[bytes], log: Path) -> None:
    """Raises SystemExit with what it printed last if it ends, or is not up within START_S."""
    deadline = time.monotonic() + START_S
    while "Monolane runs at" not in log.read_text(errors="replace"):
        if supervisor.poll() is not None or time.monotonic() > deadline:
            why = "ended" if supervisor.poll() is not None else f"was not up within {START_S} s"
            raise SystemExit(f"screenshots: the product {why}:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.2)


def say(doing: str) -> None:
    print(f"  {doing}", flush=True)


def take_playground(page: Page) -> None:
    say("running an example in the playground")
    page.goto("/")
    expect(page.locator("#run")).to_be_enabled()
    page.get_by_role("button", name="Settings").click()
    page.locator("[name=temperature]").fill("0")
    page.locator("[name=max_tokens]").fill("160")
    page.get_by_role("button", name="Settings").click()
    page.locator("#run").click()
    page.wait_for_selector("#output[data-state=over]", timeout=RUN_S * 1000)
    expect(page.locator("#engine")).to_contain_text("ready")  # it says so a moment later
    page.mouse.move(0, 0)
    save(page, "playground.png")


def take_dashboard(page: Page, environment: dict[str, str]) -> None:
    say("importing benchmarks/ into the dashboard")
    files = sorted(map(str, (ROOT / "benchmarks").glob("*.json")))
    command = [sys.executable, "manage.py", "import_results", *files]
    subprocess.run(
        command, cwd=ROOT, env=environment, check=True, timeout=IMPORT_S, stdout=subprocess.DEVNULL
    )
    page.goto("/dashboard/")
    page.wait_for_load_state("networkidle")
    save(page, "dashboard.png")


def save(page: Page, name: str) -> None:
    path = IMAGES / name
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"  {path.relative_to(ROOT)}: {size / 1000:.0f} kB")
    if size > MOST_BYTES:
        raise SystemExit(f"screenshots: {name} has {size:,} bytes; the tree takes {MOST_BYTES:,}: show less")


def environment_in(home: Path) -> dict[str, str]:
    """For a product on a free port that keeps everything but the model's weights in `home`."""
    (home / "models").symlink_to(settings.models_dir().resolve())
    environment = settings.child_environment(MONOLANE_HOME=str(home), PORT=str(free_port()))
    return {**environment, "REDIS_URL": "", "DATABASE_URL": ""}


def main() -> int:
    chromium = find_chromium()
    if chromium is None:
        print("screenshots: Chromium is missing: run `make setup-dev`, or put it in PATH", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="monolane-") as folder, sync_playwright() as playwright:
        environment = environment_in(Path(folder))
        with running_product(environment, Path(folder) / "supervisor.log"):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            expect.set_options(timeout=START_S * 1000)
            page = browser.new_page(
                base_url=f"http://127.0.0.1:{environment['PORT']}", viewport=VIEWPORT, color_scheme="dark"
            )
            page.set_default_timeout(START_S * 1000)
            try:
                page.goto("/")  # fonts come from the cache the second time
                take_playground(page)
                page.emulate_media(color_scheme="light")
                take_dashboard(page, environment)
            except (PlaywrightError, AssertionError, subprocess.SubprocessError) as error:
                raise SystemExit(f"screenshots: {error}") from error
            finally:
                browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

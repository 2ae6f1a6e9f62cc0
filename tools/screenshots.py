"""Takes the README's pictures from the running product: `make screenshots`.

Starts everything as `make run` does, in a folder and on a port of its own, runs an example and a small
sweep, and writes docs/images/playground.png and docs/images/dashboard.png.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Page, ViewportSize, expect, sync_playwright

from engine import settings
from engine.backends import availability
from tools.ports import free_port

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
START_S = 120
STOP_S = 60
SWEEP_S = 600
MOST_BYTES = 200_000
VIEWPORT: ViewportSize = {"width": 1280, "height": 800}


@contextmanager
def running_product(environment: dict[str, str]) -> Iterator[None]:
    """Everything that `make run` starts, up and ready."""
    with subprocess.Popen(
        [sys.executable, "-m", "tools.supervisor"],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ) as supervisor:
        try:
            for line in supervisor.stdout or ():
                print(line, end="")
                if "Monolane runs at" in line:
                    break
            else:
                raise SystemExit("screenshots: the product did not start; its output is above")
            yield
        finally:
            supervisor.send_signal(signal.SIGINT)
            try:
                supervisor.wait(STOP_S)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                raise SystemExit(f"screenshots: the product did not end within {STOP_S} s") from None


def take_playground(page: Page) -> None:
    page.goto("/")
    expect(page.locator("#engine")).to_have_attribute("data-state", "ready", timeout=START_S * 1000)
    page.get_by_role("button", name="Settings").click()
    page.locator("[name=temperature]").fill("0")
    page.get_by_role("button", name="Settings").click()
    page.locator("#run").click()
    page.wait_for_selector("#output[data-state=over]", timeout=START_S * 1000)
    page.wait_for_selector("#engine[data-state=ready]")  # it says so a moment later
    page.mouse.move(0, 0)
    save(page, "playground.png")


def take_dashboard(page: Page, environment: dict[str, str]) -> None:
    usable = {name for name, works, _ in availability() if works}
    sweep = "cpu-context" if "cpu" in usable else "cpu-quick"
    command = [sys.executable, "manage.py", "sweep", sweep]
    print(f"  measuring {sweep}: minutes", flush=True)
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=SWEEP_S, stdout=subprocess.DEVNULL)
    page.goto("/dashboard/runs/")
    page.locator("table.runs tbody a").first.click()
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
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("screenshots: Chromium is missing: run `make setup-dev`, or put it in PATH", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="monolane-") as folder, sync_playwright() as playwright:
        environment = environment_in(Path(folder))
        with running_product(environment):
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(
                base_url=f"http://127.0.0.1:{environment['PORT']}", viewport=VIEWPORT, color_scheme="dark"
            )
            page.goto("/")  # fonts come from the cache the second time
            take_playground(page)
            page.emulate_media(color_scheme="light")
            take_dashboard(page, environment)
            browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

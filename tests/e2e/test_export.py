"""A run leaves the page: as code that sends the same request, and as a page of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.conftest import watched
from tests.e2e.playground_page import PlaygroundPage, wait_until
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import Service

PROMPT = 'it\'s = "a $HOME `test`"\ndef add(a, b):\n    return'
RUNNERS = {"curl": ["sh"], "python": [sys.executable], "javascript": ["node"]}
TOKENS = 12


def run_as_is(program: Path, kind: str) -> str:
    """What a person sees who runs the file without any key."""
    env = {name: value for name, value in os.environ.items() if name != "MONOLANE_API_KEY"}
    done = subprocess.run(
        [*RUNNERS[kind], program], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("kind", RUNNERS)
def test_the_downloaded_code_says_what_the_page_said(
    playground: PlaygroundPage, worker: Service, tmp_path: Path, kind: str
) -> None:
    page = playground.page
    playground.set(temperature=0, max_tokens=TOKENS)
    playground.run(PROMPT)
    playground.wait_for_end()
    page.get_by_role("button", name="Export").click()
    page.locator(f"[name=code-kind][value={kind}]").check()
    code = page.get_by_role("dialog", name="The same request as code")
    expect(code.get_by_label("Code", exact=True)).to_contain_text("environment variable MONOLANE_API_KEY")
    with page.expect_download() as download:
        code.get_by_role("button", name="Download").click()
    program = tmp_path / download.value.suggested_filename
    download.value.save_as(program)
    said = run_as_is(program, kind)
    if kind == "curl":
        assert said.count('"text"') >= 2
        assert said.rstrip().endswith("data: [DONE]")
    else:
        assert said.rstrip("\n") == playground.text.rstrip("\n")


def test_a_conversation_is_exported_as_it_was_last_sent(
    playground: PlaygroundPage, worker: Service, tmp_path: Path
) -> None:
    page = playground.page
    playground.show("Chat")
    export = page.locator("#panel-chat").get_by_role("button", name="Export")
    expect(export).to_be_disabled()
    playground.set(temperature=0, answer_tokens=TOKENS)
    playground.ask("Say hello.")
    playground.wait_for_answer()
    export.click()
    page.get_by_role("radio", name="JavaScript").check()
    with page.expect_download() as download:
        page.locator("#code").get_by_role("button", name="Download").click()
    program = tmp_path / download.value.suggested_filename
    download.value.save_as(program)
    assert (
        run_as_is(program, "javascript").strip()
        == playground.answers.locator(".turn-body").inner_text().strip()
    )


def test_a_run_is_shared_under_an_address_and_revoked_by_its_owner(
    playground: PlaygroundPage, worker: Service, browser: Browser, complaints: list[str]
) -> None:
    page = playground.page
    expect(page.get_by_role("button", name="Share")).to_be_disabled()
    playground.set(temperature=0, max_tokens=TOKENS)
    playground.run("def add(a, b):\n    return")
    playground.wait_for_end()
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Create link").click()
    link = page.locator("#share-link")
    expect(link).to_be_focused()
    address = link.inner_text()

    stranger = browser.new_context()
    try:
        visit = watched(stranger, complaints)
        visit.goto(address)
        expect(visit.locator(".output-text")).to_contain_text(playground.text.strip())
        page.goto(address)
        page.locator("summary", has_text="Revoke").click()
        page.get_by_role("button", name="Take it down").click()
        expect(page.get_by_text("Nothing yet.")).to_be_visible()
        gone = visit.request.get(address)
        assert gone.status == 404
        assert "There is no such page" in gone.text()
    finally:
        stranger.close()


def test_each_share_button_publishes_what_its_own_tab_shows(
    playground: PlaygroundPage, worker: Service
) -> None:
    page = playground.page
    playground.set(temperature=0, max_tokens=TOKENS)
    playground.run("def add(a, b):\n    return")
    playground.wait_for_end()
    shown = playground.text
    playground.ask("My secret is 1234. Say hi.")
    playground.wait_for_answer()
    playground.show("Output")
    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share this output")
    expect(dialog).to_contain_text("def add(a, b):")
    expect(dialog).not_to_contain_text("1234")
    dialog.get_by_role("button", name="Create link").click()
    expect(page.locator("#share-link")).to_be_focused()
    page.goto(page.locator("#share-link").inner_text())
    expect(page.locator(".output-text")).to_contain_text(shown.strip())
    expect(page.locator("main")).not_to_contain_text("1234")


def test_the_chat_s_share_shows_every_message_before_anything_is_published(
    server: ScriptedServer, playground: PlaygroundPage
) -> None:
    server("Hi.")
    page = playground.page
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.url) if request.method == "POST" else None)
    playground.ask("My secret is 1234. Say hi.")
    playground.wait_for_answer()
    page.get_by_role("button", name="Share").click()
    dialog = page.get_by_role("dialog", name="Share this conversation of 2 messages")
    expect(dialog).to_contain_text("My secret is 1234. Say hi.")
    expect(dialog).to_contain_text("Hi.")
    page.keyboard.press("Escape")
    assert posted == []


def test_the_figures_above_a_text_are_its_own(server: ScriptedServer, playground: PlaygroundPage) -> None:
    server("one two")
    playground.run("x")
    playground.wait_for_end()
    expect(playground.page.locator("#meter-tokens")).to_have_text("2")
    server("three", endless=True)
    playground.ask("More?")
    for _ in range(5):
        server.more(" four")
    expect(playground.page.locator("#meter-tokens")).to_have_text("7")
    playground.show("Output")
    expect(playground.page.locator("#meter-tokens")).to_have_text("2")


def test_a_shared_run_is_coloured_and_opens_in_the_playground(
    playground: PlaygroundPage, worker: Service
) -> None:
    page = playground.page
    playground.set(temperature=0, max_tokens=TOKENS)
    playground.run("def add(a, b):\n    return")
    playground.wait_for_end()
    page.get_by_role("button", name="Share").click()
    page.get_by_role("button", name="Create link").click()
    expect(page.locator("#share-link")).to_be_focused()
    playground_draft = "mine = 1"
    page.keyboard.press("Escape")
    playground.type_prompt(playground_draft)
    page.goto(page.locator("#share-link").inner_text())
    assert wait_until(page, lambda: page.evaluate("CSS.highlights.has('code-keyword')"))
    page.get_by_role("button", name="Open in the playground").click()
    expect(playground.editor).to_contain_text("def add(a, b):")
    playground.editor.click()
    page.keyboard.press("ControlOrMeta+z")
    expect(playground.editor).to_have_text(playground_draft)  # nothing of one's own is lost

"""Languages of code: loaded when something is written in them, known by a file's name."""

from __future__ import annotations

from playwright.sync_api import BrowserContext, Page, expect

from tests.e2e.playground_page import PlaygroundPage
from tests.e2e.scripted import ScriptedServer
from tests.e2e.stack import Stack

RUST = "fn main() {\n    let x = 1;\n"


def opened_files(page: Page, name: str, content: bytes) -> None:
    page.locator("#open-file").set_input_files(
        {"name": name, "mimeType": "application/octet-stream", "buffer": content}
    )


def test_a_language_is_loaded_once_something_is_written_in_it_and_kept_for_good(
    server: ScriptedServer, context: BrowserContext, page: Page, stack: Stack
) -> None:
    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    playground = PlaygroundPage.open(page)
    page.wait_for_load_state("networkidle")
    first = {url for url in asked if "/chunks/" in url}
    assert first == set(
        page.locator("link[rel=modulepreload]").evaluate_all("all => all.map(one => one.href)")
    )

    opened_files(page, "main.rs", RUST.encode())
    expect(page.get_by_label("Highlight as")).to_have_value("rust")
    expect(page.locator("#editor .code-keyword", has_text="fn")).to_be_visible()
    later = [url for url in asked if "/chunks/" in url and url not in first]
    assert later
    for url in [*first, *later]:
        assert url.startswith(stack.url)
        headers = page.request.fetch(url, method="HEAD", headers={"Accept-Encoding": "gzip"}).headers
        assert "immutable" in headers["cache-control"]
        assert headers["content-encoding"] == "gzip"

    server("    let y = 2;\n}")
    playground.run()
    playground.wait_for_end()
    coloured = "() => [...(CSS.highlights.get('code-keyword') ?? [])].map(String).length"
    assert page.evaluate(coloured) == 1
    playground.show("Chat")
    server("```main.go\nfunc main() {}\n```")
    playground.ask("And in Go?")
    playground.wait_for_answer()
    expect(page.locator(".turn .code-keyword", has_text="func")).to_be_visible()


def test_a_file_that_is_too_long_or_no_text_is_refused_by_name(playground: PlaygroundPage) -> None:
    page = playground.page
    before = playground.editor.inner_text()
    opened_files(page, "picture.png", b"\x89PNG\xff\xfe")
    expect(page.get_by_role("alert")).to_contain_text(
        "The file picture.png is not text in UTF-8: open a text file."
    )
    opened_files(page, "long.py", b"x = 1\n" * 20_000)
    expect(page.get_by_role("alert")).to_contain_text("The file long.py has 120,000 bytes; at most")
    assert playground.editor.inner_text() == before


def test_a_right_to_left_line_is_set_from_the_right_in_the_editor_too(playground: PlaygroundPage) -> None:
    playground.type_prompt("x = 1\n# plain\nשלום עולם\n")
    directions = "all => all.map(line => getComputedStyle(line).direction)"
    lines = playground.page.locator("#editor .cm-line")
    assert lines.evaluate_all(directions) == ["ltr", "ltr", "rtl", "ltr"]

"""Leaving the Playground in a browser, coming back, and what pages of other sites get of it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest
from browsers import SHELL, launched
from playground_support import Shown, ask
from web_support import Seen, browsing, expect

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

SVG = b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9" height="9"/></svg>'
TOKEN, USER = "token-of-eve-token-of-eve", "eve-of-the-playground"


@pytest.fixture(scope="module")
def with_tokens(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    file.write_text(json.dumps({TOKEN: USER}))
    file.chmod(0o600)
    return start(RUNNER_USER="", RUNNER_AUTH__KIND="static", RUNNER_AUTH__TOKENS_FILE=str(file))


@contextmanager
def elsewhere(page: str) -> Iterator[str]:
    """Serve a page of another origin."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


def enter(seen: Seen) -> None:
    seen.page.get_by_label("Token", exact=True).fill(TOKEN)
    seen.page.get_by_role("button", name="Log in").click()
    expect(seen.page.get_by_role("navigation", name="Views")).to_be_visible()


def test_logout_shows_login_and_invalidates_copied_cookie(with_tokens: Shown) -> None:
    with browsing(with_tokens) as opened:
        seen = opened()
        enter(seen)
        (cookie,) = seen.page.context.cookies()
        with with_tokens.browser(cookie=f"{cookie['name']}={cookie['value']}") as copy:
            before = copy.get("/play/info").status_code, ask(copy, "tools/list", {}).status_code

            seen.log_out()
            expect(seen.page.get_by_role("heading", level=1)).to_have_text("Log in")

            after = copy.get("/play/info").status_code, ask(copy, "tools/list", {}).status_code
        left = seen.page.context.cookies()
        enter(seen)

    assert (before, after) == ((200, 200), (401, 401))
    assert left == []


def test_logout_ends_mcp_session_started_by_the_page(with_tokens: Shown) -> None:
    begins = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    lists = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    accept = {"accept": "application/json, text/event-stream"}
    bearer = {"authorization": f"Bearer {TOKEN}"}

    def status(browser: httpx2.Client, session: str) -> int:
        return browser.post(
            "/play/mcp", json=lists, headers={**accept, "mcp-session-id": session}
        ).status_code

    with with_tokens.browser() as browser, with_tokens.browser() as later:
        browser.post("/api/session", headers=bearer)
        later.post("/api/session", headers=bearer)
        mine, others = (
            each.post("/play/mcp", json=begins, headers=accept).headers["mcp-session-id"]
            for each in (browser, later)
        )
        before = status(later, mine), status(later, others)

        assert browser.delete("/api/session").status_code == 204

        after = status(later, mine), status(later, others)

    assert (before, after) == ((200, 200), (404, 200))


def test_a_start_key_opens_once_and_the_next_one_is_printed(start: Callable[..., Shown]) -> None:
    shown = start()
    with shown.browser() as first, shown.browser() as second:
        key = shown.key
        opened = first.get(f"/?key={key}"), first.get("/play/info")
        again = second.get(f"/?key={key}"), second.get("/play/info")
        tab = first.get(f"/?key={key}"), first.get("/play/info")
        following = second.get(f"/?key={shown.key}"), second.get("/play/info")

    assert [answer[1].status_code for answer in (opened, again, tab, following)] == [200, 401, 200, 200]
    assert "set-cookie" not in again[0].headers
    assert "prints the next" in again[1].json()["error"]


def test_foreign_page_cannot_show_or_run_a_file_by_its_link(shown: Shown) -> None:
    with shown.entered() as browser:
        record = browser.put("/api/files?filename=a.svg", content=SVG).json()
        link = browser.post(f"/api/files/{record['key']}/link", json={}).json()["url"]
    address = link if link.startswith("http") else shown.base + link
    page = (
        f'<img src="{address}" onload="document.title = `shown`" onerror="document.title = `refused`">'
        f'<script src="{address}"></script>'
    )
    titles = []
    with elsewhere(page) as url, launched(SHELL) as program:
        for without in (False, True):
            tab = program.new_page()
            if without:

                def stripped(route: object) -> None:
                    answer = route.fetch()  # type: ignore[attr-defined]
                    dropped = "cross-origin-resource-policy"
                    remaining = {name: value for name, value in answer.headers.items() if name != dropped}
                    route.fulfill(response=answer, headers=remaining)  # type: ignore[attr-defined]

                tab.route("**/api/files/download/**", stripped)
            # Of another site than the server: by another name for this machine.
            tab.goto(url.replace("127.0.0.1", "localhost") if "127.0.0.1" not in shown.base else url)
            tab.wait_for_function("document.title !== ''")
            titles.append(tab.title())

    # Without the header it is shown, so it is the header that keeps it from being.
    assert titles == ["refused", "shown"]

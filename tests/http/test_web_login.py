"""A person opens the Playground in a browser where users log in at a provider: a real one, over loopback."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
from browsers import PATIENCE_MS, launched
from issuer import initialize
from oidc import openid_provider, sent_back
from playwright.sync_api import Browser, Page, expect
from ports import free_port
from support import until

pytestmark = [
    pytest.mark.needs_browser,
    pytest.mark.needs_npm,
    pytest.mark.release,
    pytest.mark.kernel,
    pytest.mark.timeout(600),
]

Serve = Callable[..., str]


@pytest.fixture
def address() -> str:
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def browser() -> Iterator[Browser]:
    with launched() as one:
        yield one


def serve_with(serve_to: Serve, address: str, provider: str, **more: str) -> str:
    settings = {
        "RUNNER_AUTH__KIND": "oidc",
        "RUNNER_AUTH__ISSUER": f"{provider}",
        "RUNNER_AUTH__CLIENT_ID": "runner",
        **more,
    }
    return serve_to("--port", address.rpartition(":")[2], **settings)


def new_page(browser: Browser) -> Page:
    page = browser.new_context().new_page()
    page.set_default_timeout(PATIENCE_MS)
    return page


def allow(page: Page) -> None:
    page.get_by_role("button", name="Allow Access").click()


def log_in(page: Page, user: str) -> None:
    """Approve the page as a client, log in and consent at the provider."""
    allow(page)
    page.locator("input[name=login]").fill(user)
    page.locator("input[name=password]").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("navigation", name="Views")).to_be_visible()


def test_web_login_at_provider_works_until_logout(
    address: str, serve_to: Serve, browser: Browser, tmp_path: Path
) -> None:
    with openid_provider(address) as provider:
        url = serve_with(serve_to, address, provider)
        page = new_page(browser)

        page.goto(f"{address}/")
        expect(page.get_by_text("the Playground of this server").first).to_be_visible()
        log_in(page, "ann")
        shown = page.url
        page.get_by_label("Menu").click()
        expect(page.get_by_text("ann@example.com")).to_be_visible()
        cookies = {cookie["name"]: cookie for cookie in page.context.cookies(address)}
        called = page.evaluate(CALL)
        cookie = cookies["toolcell_session"]["value"]
        before = info_by(address, cookie)

        page.get_by_role("button", name="Log out").click()
        page.get_by_role("dialog").get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        after = info_by(address, cookie)
        page.get_by_role("link", name="Log in").click()
        allow(page)
        expect(page.get_by_role("navigation", name="Views")).to_be_visible()

    assert shown == f"{address}/"
    assert "ann@example.com" in called
    # No token reaches the page: what it has is a cookie that no script reads.
    assert cookies["toolcell_session"]["httpOnly"]
    assert cookies["toolcell_session"]["sameSite"] == "Strict"
    assert "toolcell_login" not in cookies
    assert (
        page.evaluate("[...Object.values(localStorage), ...Object.values(sessionStorage)].join()").count(
            "eyJ"
        )
        == 0
    )
    assert (before, after) == (200, 401)
    assert initialize(url).status_code == 401


CALL = """async () => {
  const meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {name: "t", version: "1"},
    "io.modelcontextprotocol/clientCapabilities": {}}
  const params = {name: "whose", arguments: {}, _meta: meta}
  const answer = await fetch("/play/mcp", {method: "POST", body: JSON.stringify(
    {jsonrpc: "2.0", id: 1, method: "tools/call", params}), headers: {"content-type": "application/json",
    accept: "application/json, text/event-stream", "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tools/call", "mcp-name": "whose"}})
  return answer.text()
}"""


def info_by(address: str, cookie: str) -> int:
    headers = {"cookie": f"toolcell_session={cookie}"}
    return httpx2.get(f"{address}/play/info", headers=headers, trust_env=False, timeout=180).status_code


def test_web_session_ends_with_login_token(
    address: str, serve_to: Serve, browser: Browser, tmp_path: Path
) -> None:
    with openid_provider(address, seconds=20) as provider:
        serve_with(serve_to, address, provider)
        page = new_page(browser)
        page.goto(f"{address}/")
        log_in(page, "ann")
        (cookie,) = (one for one in page.context.cookies(address) if one["name"] == "toolcell_session")
        before = info_by(address, cookie["value"])

        ended = until(lambda: info_by(address, cookie["value"]) == 401)

    assert (before, ended) == (200, True)


def test_login_started_by_another_browser_fails(address: str, serve_to: Serve, tmp_path: Path) -> None:
    """Else somebody could be made to work as the one who sent the address."""
    done = "/play/login/done"
    with openid_provider(address) as provider:
        serve_with(serve_to, address, provider)
        with (
            httpx2.Client(base_url=address, trust_env=False, timeout=180) as mallory,
            httpx2.Client(base_url=address, trust_env=False, timeout=180) as other,
        ):
            came = sent_back(mallory, f"{address}/play/login", "mallory", address + done)
            query = parse_qs(urlsplit(came).query)
            never_began = other.get(came)
            other.get("/play/login")
            wrong = [
                # Somebody who never began one, who began one, and who says the other's state to be their own.
                never_began,
                other.get(came),
                other.get(done, params={"code": query["code"][0], "state": "x"}),
                # Who began it, with a code of nobody.
                mallory.get(done, params={"code": "0" * 40, "state": query["state"][0]}),
            ]
            right = mallory.get(came)
            with httpx2.Client(base_url=address, trust_env=False, timeout=180) as copy:
                wrong.append(copy.get(came, headers={"cookie": f"toolcell_login={SECRET}"}))
            info = mallory.get("/play/info")

    assert [each.status_code for each in wrong] == [403] * 5
    assert not any("toolcell_session" in str(each.headers) for each in wrong)
    # The control: the browser that began it.
    assert (right.status_code, info.json()["user"]) == (303, "mallory@example.com")


SECRET = "a-secret-of-another-login-under-way-that-nobody-began"

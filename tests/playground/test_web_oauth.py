"""The OAuth debugger: from a server that asks for a token to a call with one, each step shown and repeatable.

A real OpenID provider, a real resource server, and a page of `runner dev` in Chromium.

Source: `docs/playground.md`.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playground_support import Shown
from playwright.sync_api import Locator
from web_everything import developing
from web_support import Seen, expect, faults

sys.path.insert(0, str(Path(__file__).parents[1] / "http"))

from oidc import openid_provider
from ports import free_port

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]


@pytest.fixture(scope="module")
def guarded(start: Callable[..., Shown]) -> Iterator[str]:
    """A server whose users log in with an OpenID provider; its address."""
    own = f"http://127.0.0.1:{free_port()}"
    with openid_provider(own) as provider:
        shown = start(
            port=own.rpartition(":")[2],
            RUNNER_AUTH__KIND="jwt",
            RUNNER_AUTH__JWKS_URI=f"{provider}/jwks",
            RUNNER_AUTH__ISSUER=provider,
            RUNNER_AUTH__AUTHORIZATION_SERVERS=provider,
            RUNNER_AUTH__REQUIRED_SCOPES="call",
            RUNNER_IDENTITY_CLAIM="sub",
            RUNNER_USER="",
        )
        yield f"{shown.base}/mcp"


@pytest.fixture(scope="module")
def seen(start: Callable[..., Shown]) -> Iterator[Seen]:
    with developing(start) as (_, opened):
        yield opened()


def step(seen: Seen, number: int) -> Locator:
    return seen.page.get_by_role("main").get_by_role("listitem").get_by_role("region").nth(number - 1)


def log_in(page: Seen, number: int = 5) -> None:
    """Open the login in its own tab, and go through it as its user."""
    with page.page.context.expect_page() as opened:
        step(page, number).get_by_role("button", name="Open the login").click()
    tab = opened.value
    name, consent = tab.get_by_placeholder("Enter any login"), tab.get_by_role("button", name="Continue")
    expect(name.or_(consent)).to_be_visible()
    # Who has logged in there before in this browser is only asked for consent.
    if name.is_visible():
        name.fill("ann")
        tab.get_by_placeholder("and password").fill("any")
        tab.get_by_role("button", name="Sign-in").click()
    consent.click()
    expect(tab.get_by_role("status").last).to_have_text(
        "The answer has gone to the page that asked for it. You can close this tab."
    )
    assert "code=" not in tab.url
    tab.close()


def test_a_login_is_gone_through_step_by_step(seen: Seen, guarded: str) -> None:
    seen.go("oauth")
    seen.page.get_by_label("Address of the MCP server").fill(guarded)
    seen.page.get_by_role("button", name="Make all steps up to the login").click()

    for number in (1, 2, 3, 4):
        expect(step(seen, number).get_by_role("status")).to_have_text("done")
    assert faults(seen) == []
    challenge = step(seen, 1)
    challenge.locator("summary").click()
    expect(challenge).to_contain_text("HTTP 401")
    expect(challenge).to_contain_text("resource_metadata=")
    expect(step(seen, 4).get_by_label("Client id")).not_to_have_value("")

    log_in(seen)
    expect(step(seen, 5).get_by_role("status")).to_have_text("done")
    step(seen, 6).get_by_role("button", name="Make this step").click()
    expect(step(seen, 6).get_by_role("status")).to_have_text("done")
    step(seen, 6).locator("summary").click()
    expect(step(seen, 6)).to_contain_text("access_token")
    step(seen, 8).get_by_role("button", name="Make this step").click()
    expect(step(seen, 8).get_by_role("status")).to_have_text("done")
    assert faults(seen) == []

    step(seen, 8).get_by_role("button", name="Connect with this token").click()
    seen.tool("double")
    seen.write('{"number": 4}')
    expect(seen.run()).to_contain_text("8")


def test_steps_are_repeated_and_a_wrong_one_says_what_is_wrong(seen: Seen, guarded: str) -> None:
    seen.go("oauth")
    seen.page.get_by_label("Address of the MCP server").fill(guarded)
    seen.page.get_by_role("button", name="Make all steps up to the login").click()
    expect(step(seen, 4).get_by_role("status")).to_have_text("done")
    step(seen, 3).get_by_role("button", name="Make it again").click()
    expect(step(seen, 3).get_by_role("status")).to_have_text("done")
    log_in(seen)
    expect(step(seen, 5).get_by_role("status")).to_have_text("done")

    step(seen, 4).get_by_label("Client id").fill("nobody")
    step(seen, 6).get_by_role("button", name="Make this step").click()

    expect(step(seen, 6).get_by_role("alert")).to_contain_text("invalid_client")


def test_an_answer_that_no_page_waits_for_is_taken_by_none(seen: Seen, guarded: str) -> None:
    seen.go("oauth")
    seen.page.get_by_label("Address of the MCP server").fill(guarded)
    forged = seen.page.context.new_page()

    forged.goto(f"{seen.shown.base}/play/oauth/callback?code=evil&state=guessed")

    expect(forged.get_by_role("status").last).to_contain_text("No page waits for this answer")
    assert "evil" not in forged.url
    expect(step(seen, 6).get_by_role("button", name="Make this step")).to_be_disabled()
    forged.close()


def test_a_server_that_asks_for_no_token_is_said_to_need_none(seen: Seen) -> None:
    seen.go("oauth")
    seen.page.get_by_label("Address of the MCP server").fill(f"{seen.shown.base}/mcp")
    step(seen, 1).get_by_role("button", name="Make this step").click()

    expect(step(seen, 1).get_by_role("alert")).to_contain_text("it needs none, or is no MCP server")

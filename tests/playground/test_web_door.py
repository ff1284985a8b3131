"""Logging in with a token, in a browser.

Source: decision 15; `docs/widgets.md`.
"""

import json
from collections.abc import Callable, Iterator

import pytest
from playground_support import Shown
from web_support import WEB_TOOLS, Seen, browsing, expect, faults

pytestmark = [pytest.mark.kernel, pytest.mark.needs_browser, pytest.mark.needs_npm, pytest.mark.release]

TOKEN, USER = "token-of-eve-token-of-eve", "eve-of-the-playground"


@pytest.fixture(scope="module")
def opened(
    start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Seen]]:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    file.write_text(json.dumps({TOKEN: USER}))
    file.chmod(0o600)
    shown = start(
        tools=WEB_TOOLS, RUNNER_USER="", RUNNER_AUTH__KIND="static", RUNNER_AUTH__TOKENS_FILE=str(file)
    )
    with browsing(shown) as opening:
        yield opening


@pytest.fixture
def door(opened: Callable[..., Seen]) -> Iterator[Seen]:
    """A page of somebody who has not logged in."""
    seen = opened()
    yield seen
    seen.page.context.close()


def log_in(door: Seen, token: str) -> None:
    door.page.get_by_label("Token", exact=True).fill(token)
    door.page.get_by_role("button", name="Log in").click()


def stored_token(door: Seen) -> str:
    """Return all that the browser keeps for the page and lets it read."""
    return str(
        door.page.evaluate(
            "async () => JSON.stringify([localStorage, sessionStorage, document.cookie, location.href,"
            " history.state, (await indexedDB.databases()).map(each => each.name)])"
        )
    )


def test_wrong_token_is_refused_and_right_one_opens_the_page(door: Seen) -> None:
    expect(door.page.get_by_role("heading", level=1)).to_have_text("Log in")
    expect(door.page.get_by_label("Token", exact=True)).to_be_focused()

    log_in(door, "no-such-token-anywhere")
    expect(door.page.get_by_role("alert")).to_contain_text("this token is not valid, or has expired")
    expect(door.page.get_by_label("Token", exact=True)).to_have_value("")
    assert faults(door) == []
    log_in(door, TOKEN)

    expect(door.page.get_by_role("navigation", name="Views")).to_be_visible()
    expect(door.page.get_by_role("banner")).to_contain_text(USER)


def test_login_allows_calls_and_survives_a_reload(door: Seen) -> None:
    log_in(door, f"  {TOKEN} ")
    door.tool("publish")
    door.page.get_by_label("text").fill("kept")

    door.run()
    door.page.reload()

    expect(door.page.get_by_label("text")).to_have_value("kept")


def test_token_is_stored_nowhere_readable_by_a_page(door: Seen) -> None:
    requests: list[str] = []
    door.page.on("request", lambda request: requests.append(request.url))

    log_in(door, TOKEN)
    expect(door.page.get_by_role("navigation", name="Views")).to_be_visible()

    assert TOKEN not in stored_token(door)
    assert any(url.endswith("/api/session") for url in requests)
    assert not any(TOKEN in url for url in requests)
    assert TOKEN not in door.page.content()


def test_a_page_whose_session_is_over_goes_back_to_the_door(door: Seen) -> None:
    log_in(door, TOKEN)
    door.tool("publish")

    door.page.get_by_label("text").fill("kept")

    door.page.context.clear_cookies()
    door.page.get_by_role("button", name="Run").first.click()

    expect(door.page.get_by_role("heading", level=1)).to_have_text("Log in")
    log_in(door, TOKEN)
    expect(door.page.locator("h1")).to_have_text("publish")

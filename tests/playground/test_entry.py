"""Access to the Playground and its rights. Source: decision 15."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from playground_support import Shown, answer, ask

pytestmark = pytest.mark.kernel

TOKENS = {"token-of-ann-token-of-ann": "ann-of-the-playground"}


@pytest.fixture(scope="module")
def with_tokens(start: Callable[..., Shown], tmp_path_factory: pytest.TempPathFactory) -> Shown:
    file = tmp_path_factory.mktemp("tokens") / "tokens.json"
    file.write_text(json.dumps(TOKENS))
    file.chmod(0o600)
    return start(RUNNER_USER="", RUNNER_AUTH__KIND="static", RUNNER_AUTH__TOKENS_FILE=str(file))


def test_printed_address_starts_session_and_hides_key(shown: Shown) -> None:
    with shown.browser() as browser:
        key = shown.key
        entered = browser.get(f"/?key={key}")

        info = browser.get("/play/info").json()

    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    assert re.search(r"HttpOnly.*SameSite=strict", entered.headers["set-cookie"])
    assert key is not None
    assert key not in entered.headers["set-cookie"]
    assert info["user"] == shown.user


def test_https_proxy_session_uses_host_prefixed_secure_cookie(shown: Shown) -> None:
    with shown.browser(**{"x-forwarded-proto": "https"}) as browser:
        set_cookie = browser.get(f"/?key={shown.key}").headers["set-cookie"]
        cookie = set_cookie.partition(";")[0]
        statuses = [
            browser.get("/play/info", headers={"cookie": each}).status_code
            for each in (cookie, cookie.removeprefix("__Host-"))
        ]

    assert re.match("__Host-toolcell_session=.*; Secure", set_cookie)
    assert statuses == [200, 401]


@pytest.mark.parametrize("key", ["", "wrong", "ümläut"])
def test_wrong_key_starts_no_session(shown: Shown, key: str) -> None:
    with shown.browser() as browser:
        entered = browser.get("/", params={"key": key})

        info = browser.get("/play/info")

    assert "set-cookie" not in entered.headers
    assert info.status_code == 401
    assert "address with the key" in info.json()["error"]


def test_a_tool_is_called_through_the_page_s_own_way(shown: Shown) -> None:
    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "double", "arguments": {"number": 21}}))

    assert result["structuredContent"] == {"result": 42}


def test_mcp_route_without_session_is_refused(shown: Shown) -> None:
    with shown.browser() as browser:
        refused = ask(browser, "tools/list", {})

    assert refused.status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
    ],
    ids=str,
)
@pytest.mark.parametrize("path", ["/play/mcp", "/play/info", "/play/dashboards"])
def test_cross_site_page_with_browser_cookie_is_refused(
    shown: Shown, path: str, headers: dict[str, str]
) -> None:
    with shown.entered() as browser:
        if path == "/play/info":
            refused = browser.get(path, headers=headers)
        elif path == "/play/mcp":
            refused = ask(browser, "tools/list", {}, **headers)
        else:
            refused = browser.post(path, json={"id": "a", "url": "https://a.example"}, headers=headers)

    assert refused.status_code == 403


def test_a_page_of_this_server_gets_through(shown: Shown) -> None:
    with shown.entered() as browser:
        listed = ask(browser, "tools/list", {}, **{"sec-fetch-site": "same-origin", "origin": shown.base})

    tools = {tool["name"] for tool in answer(listed)["tools"]}
    assert {name for name in tools if not name.startswith("artifact_")} == {"double", "headers", "forbidden"}


def test_a_tool_does_not_see_the_browser_s_cookie(shown: Shown) -> None:
    with shown.entered() as browser:
        result = answer(ask(browser, "tools/call", {"name": "headers", "arguments": {}}))

    seen = result["structuredContent"]["results"]
    assert "mcp-method" in seen
    assert "cookie" not in seen


def test_token_replaces_the_start_key(with_tokens: Shown) -> None:
    token, user = next(iter(TOKENS.items()))
    with with_tokens.browser() as browser:
        before = browser.get("/play/info")
        opening = browser.post("/api/session", headers={"authorization": f"Bearer {token}"})

        info = browser.get("/play/info").json()
        result = answer(ask(browser, "tools/call", {"name": "double", "arguments": {"number": 4}}))

    assert with_tokens.first_key is None
    assert (before.status_code, before.json()["error"]) == (401, "log in with your token")
    assert opening.status_code == 201
    assert info["user"] == user
    assert result["structuredContent"] == {"result": 8}


def test_login_seen_by_a_tool_does_not_authenticate_elsewhere(with_tokens: Shown) -> None:
    token = next(iter(TOKENS))
    with with_tokens.browser() as browser:
        browser.post("/api/session", headers={"authorization": f"Bearer {token}"})
        seen = answer(ask(browser, "tools/call", {"name": "headers", "arguments": {}}))
    found = seen["structuredContent"]["results"]["authorization"]

    with httpx2.Client(base_url=with_tokens.base, headers={"authorization": found}, timeout=180) as thief:
        again = thief.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})

    assert found.startswith("Bearer page.")
    assert again.status_code == 401


def test_playground_is_off_on_open_address_without_login(start: Callable[..., Shown]) -> None:
    open_to_all = start(RUNNER_HOST="0.0.0.0", RUNNER_ALLOWED_HOSTS="127.0.0.1")

    with httpx2.Client(base_url=open_to_all.base.replace("0.0.0.0", "127.0.0.1"), timeout=180) as browser:
        page, info = browser.get("/"), browser.get("/play/info")

    assert "nobody has to log in" in open_to_all.log
    assert (page.status_code, info.status_code) == (404, 404)


def test_playground_is_off_by_setting(start: Callable[..., Shown], tmp_path: Path) -> None:
    from runner.playground.config import why_not
    from runner.settings.settings import Settings

    settings = Settings(state_dir=tmp_path, store=tmp_path.as_uri(), playground=False)
    on = Settings(state_dir=tmp_path, store=tmp_path.as_uri())

    assert why_not(settings) == "it is switched off (playground)"
    assert why_not(on) is None


def test_page_policy_allows_own_files_and_second_origin_only(shown: Shown) -> None:
    with shown.entered() as browser:
        page = browser.get("/")
        frames = browser.get("/play/info").json()["frames"]
        script = re.search(r'src="(/play/assets/[^"]+\.js)"', page.text)
        assert script is not None
        asset = browser.get(script[1])

    policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-src"] == frames
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert "<script>" not in page.text
    assert asset.headers["content-type"].startswith("text/javascript")
    assert "immutable" in asset.headers["cache-control"]
    assert asset.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("name", ["..%2f..%2fsite.py", "index.html", "nothing.js"])
def test_nothing_but_the_bundle_is_served(shown: Shown, name: str) -> None:
    with shown.browser() as browser:
        missing = browser.get(f"/play/assets/{name}")

    assert missing.status_code == 404
